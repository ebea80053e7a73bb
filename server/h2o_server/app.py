"""The HTTP application: its routes, and the middleware that every request passes."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from h2o_server.about import fleet, info, text
from h2o_server.apis import routes as completions
from h2o_server.apis.embeddings import routes as embeddings
from h2o_server.apis.shared.answers import ErrorResponse
from h2o_server.http import problems
from h2o_server.http.exchange import Exchange
from h2o_server.http.guards import BodyLimits, Gate, admission, authorization
from h2o_server.http.hosts import Hosts, Origins
from h2o_server.http.json_body import JsonRoute
from h2o_server.http.room import LISTS
from h2o_server.http.stream import ClientGone
from h2o_server.request_handler import LEFT_ALONE, LEFT_OUT
from h2o_server.service import Service
from h2o_server.settings import LOCAL_ORIGINS

STATIC = Path(__file__).parent / "static"

_PAGE_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def create_app(service: Service) -> FastAPI:
    """The application of one service."""
    app = FastAPI(
        title="h2o-serve",
        description="One model, with chunked sparse prefill.",
        version=metadata.version("h2o-edge"),
        docs_url=None,  # these pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,  # a redirect would follow the Host header
    )
    app.state.room_of, app.state.bodies = service.room_of, service.handler.bodies
    problems.install(app)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it; the log has it

    failures = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}
    router = APIRouter(route_class=JsonRoute, responses=failures)  # type: ignore[arg-type]
    completions.add_message_routes(router, service)
    for routes in (completions, embeddings, text, fleet, info):
        routes.add_routes(router, service)
    app.include_router(router)
    _add_page(app)
    _add_middleware(app, service)
    return app


def _add_page(app: FastAPI) -> None:
    files = _Page(directory=STATIC)
    app.mount("/static", files)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)


class _Page(StaticFiles):
    """The page's own files. Their policy forbids loading from other sites."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Content-Security-Policy"] = _PAGE_POLICY
        response.headers["Cache-Control"] = "no-cache"  # a new version's page must not use an old script
        return response


def _add_middleware(app: FastAPI, service: Service) -> None:
    """A request passes the middleware in reverse order: the last one added comes first."""
    settings, handler = service.settings, service.handler
    keys, answered = settings.api_keys, (*completions.PATHS, *LISTS, problems.MESSAGES)
    app.add_middleware(
        BodyLimits, limits=settings.limits, room=service.room_of, idle=handler.give_back_memory
    )
    app.add_middleware(Gate, checks=[authorization(keys), admission(handler, answered)])
    app.add_middleware(
        Origins,
        allow_origins=settings.cors_origins,
        allow_origin_regex=None if settings.cors_origins else LOCAL_ORIGINS,
        allow_methods=["*"],
        allow_headers=["*"],  # clients send extra headers, such as x-stainless-os
        expose_headers=["Retry-After", LEFT_OUT, LEFT_ALONE],
    )
    app.add_middleware(Gate, checks=[Hosts(settings.host, settings.allowed_hosts, keys=bool(keys))])
    app.add_middleware(Exchange, metrics=handler.metrics, paths=answered)
