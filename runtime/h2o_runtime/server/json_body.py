"""Bodies of requests: JSON, strictly, and every way in which it is not is the client's error."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from h2o_runtime.server.problems import Problem


class JsonRoute(APIRoute):
    """A route whose request body is parsed here."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if request.method == "POST":
                _check_type(request)
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body.decode("utf-8"), parse_constant=_not_json)
        except UnicodeDecodeError as error:
            raise Problem(400, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from error
        except RecursionError as error:
            raise Problem(400, "the body is nested too deeply", code="invalid_json") from error
        except ValueError as error:  # also integers of thousands of digits
            raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from error


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            "the body must be JSON: send the header Content-Type: application/json",
            code="unsupported_type",
        )


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON knows")
