"""Request bodies: strict JSON; any deviation is the client's error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope

from h2o_runtime.text.files import BYTE_ORDER_MARK
from h2o_server.apis.shared.routers import RouterKeys
from h2o_server.apis.shared.types import json_names
from h2o_server.http.problems import Problem, of_validation
from h2o_server.http.room import Room
from h2o_server.http.workers import Workers

_MARKS = (b",", b"[", b"{")
_BLOCK = 1 << 16  # bytes
_MANY = 100  # of validation failures, and of members that are examined if there are more
_SMALL = 16 << 10  # bytes of a body that are parsed faster than a thread switch takes
_MOST_LEVELS = 100
_TOO_DEEP = f"its objects and lists are nested deeper than {_MOST_LEVELS} levels"


class JsonRoute(APIRoute):
    """A route whose request body is parsed and validated here."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model: Any = self.body_field.field_info.annotation if self.body_field else None

        async def handle(request: Request) -> Response:
            if request.method == "POST":
                _check_type(request)
            return await handler(_JsonRequest(request.scope, request.receive, model))

        return handle


class _JsonRequest(Request):
    def __init__(self, scope: Scope, receive: Receive, model: type[BaseModel] | None) -> None:
        super().__init__(scope, receive)
        self._model = model

    async def json(self) -> Any:
        """FastAPI's input: the validated model, so that FastAPI need not parse it again.

        Outside the event loop if that may take a while. Raises Problem.
        """
        model = self._model
        assert model is not None, "a body is asked for where the route has one"
        state, body = self.app.state, await self.body()
        room: Room = state.room_of(self.url.path)
        if len(body) <= _SMALL:
            return _read(body, model, room)
        workers: Workers = state.bodies
        return await workers.run(lambda: _read(body, model, room))


def _read(body: bytes, model: type[BaseModel], room: Room) -> BaseModel:
    if has_more_values(body, room.values):
        raise room.too_many()
    try:
        value = parse(body.decode("utf-8").removeprefix(BYTE_ORDER_MARK))
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8 at byte {error.start}", code="invalid_json") from error
    except ValueError as error:
        raise Problem(400, f"the body cannot be read as JSON: {error}", code="invalid_json") from error
    try:
        return model.model_validate(value)
    except ValidationError as error:
        names = json_names(model) - json_names(RouterKeys)  # those accept one value only
        raise of_validation(_failures(error, value, model), value, names) from error


def _failures(error: ValidationError, value: Any, model: type[BaseModel]) -> list[Any]:
    """The errors in `value`, in FastAPI's form.

    For thousands of failures, pydantic's report takes ten times as long as the validation, in one call, but the
    client gets only one of them. So if there are many, only the first members of every list are examined.
    """
    if error.error_count() > _MANY:
        try:
            model.model_validate(_beginning(value, model.model_fields))
        except ValidationError as less:
            error = less
        else:
            raise Problem(
                400,
                f"{error.error_count()} values of the body are invalid, all of them after the first {_MANY} "
                "members of a list",
                code="invalid_value",
            )
    failures = error.errors(include_url=False, include_input=False)
    return [{**failure, "loc": ("body", *failure["loc"])} for failure in failures]


def _beginning(value: Any, names: Collection[str] = ()) -> Any:
    """The first members of every list and object; of the outermost object also those in `names`."""
    if isinstance(value, list):
        return [_beginning(member) for member in value[:_MANY]]
    if isinstance(value, dict):
        return {
            name: _beginning(member)
            for index, (name, member) in enumerate(value.items())
            if index < _MANY or name in names
        }
    return value


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether JSON holds more than about `limit` values, without parsing it.

    Counts commas and opening brackets outside of strings, block by block, so that other threads can run.
    """
    if sum(map(body.count, _MARKS)) <= limit:
        return False
    found, inside, start = 0, False, 0
    while start < len(body):
        end = start + _BLOCK
        while body[end - 1 : end] == b"\\":  # an escape stays in one block
            end += 1
        # Without escapes every quotation mark begins or ends a string.
        block = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        for index, segment in enumerate(block.split(b'"')):
            inside ^= index > 0
            found += 0 if inside else sum(map(segment.count, _MARKS))
        if found > limit:
            return True
        start = end
    return False


def parse(text: str) -> Any:
    """A JSON value that all code here can handle. Raises ValueError that names the problem."""
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


def sendable(value: Any) -> Any:
    """A value of `parse` as JSON can be sent: half a surrogate pair is no text, and 1e400 no float."""
    if isinstance(value, dict):
        return {sendable(name): sendable(member) for name, member in value.items()}
    if isinstance(value, list):
        return [sendable(member) for member in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _NotJsonError(ValueError):
    pass


def _deeper_than(levels: int, value: Any) -> bool:
    """Whether a value is nested deeper, checked level by level, because recursive code could exhaust the stack."""
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
            f"the body has Content-Encoding: {coding}, which this server does not decode: send it uncompressed",
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
