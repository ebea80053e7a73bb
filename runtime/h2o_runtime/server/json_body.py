"""Bodies of requests: JSON, strictly, and every way in which it is not is the client's error."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from h2o_runtime.server.problems import Problem

_MOST_LEVELS = 100
_TOO_DEEP = f"its objects and lists are nested deeper than {_MOST_LEVELS} levels"


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
            return parse(body.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise Problem(400, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from error
        except ValueError as error:
            raise Problem(400, f"the body cannot be read as JSON: {error}", code="invalid_json") from error


def parse(text: str) -> Any:
    """A JSON value that everything here can handle. Raises ValueError that says what is wrong with it."""
    try:
        value = json.loads(text, parse_constant=_not_json)
    except (json.JSONDecodeError, _NotJsonError):
        raise
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except ValueError as error:  # Python's limit for the conversion of digits
        raise ValueError("a number has thousands of digits") from error
    if _deeper_than(_MOST_LEVELS, value):
        raise ValueError(_TOO_DEEP)
    return value


class _NotJsonError(ValueError):
    pass


def _deeper_than(levels: int, value: Any) -> bool:
    """Level by level: what comes later recurses and would run out of stack where this must not."""
    containers = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        containers = [
            inner
            for outer in containers
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
    return bool(containers)


def _check_type(request: Request) -> None:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise Problem(
            415,
            f"the body is sent with Content-Encoding: {coding}: send it as it is",
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(
            415,
            "the body must be JSON: send the header Content-Type: application/json",
            code="unsupported_type",
        )


def _not_json(name: str) -> NoReturn:
    raise _NotJsonError(f"JSON knows no number {name}")
