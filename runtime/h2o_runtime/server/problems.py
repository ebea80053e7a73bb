"""Everything that a client is told has gone wrong, in the shape of OpenAI's errors."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from h2o_runtime.errors import ConfigError, ContextOverflowError, H2OError, InputError, UnknownTokenError

log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
}


class Problem(HTTPException):
    """A request that cannot be answered.

    status   HTTP status
    param    the parameter at fault, by its path in the body, as "messages.0.content"
    code     a word for programs, as "context_length_exceeded"
    headers  further headers of the response, as Retry-After
    more     further members of the error object
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message = _proper(message)
        self.param = None if param is None else _proper(param)
        self.code = code
        self.more = more or {}

    def body(self) -> dict[str, Any]:
        """The response's JSON value; the same goes into a stream as an event."""
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error | self.more}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)

    @classmethod
    def of(cls, error: H2OError) -> Problem:
        """What a client is told about an error of the runtime."""
        if isinstance(error, ContextOverflowError):
            message = (
                f"the prompt has {error.n_prompt_tokens} tokens and the context holds {error.n_ctx}: shorten "
                "the prompt, or start the server with a larger --ctx-size"
            )
            sizes = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
            return cls(400, message, code="context_length_exceeded", more=sizes)
        if isinstance(error, ConfigError):
            return cls(400, str(error), param=error.field or None, code="invalid_value")
        if isinstance(error, (InputError, UnknownTokenError)):
            return cls(400, str(error), code="invalid_value")
        return cls(500, str(error), code="inference_failed")


def _proper(text: str) -> str:
    """Text that can be sent: names out of a client's JSON may hold halves of surrogate pairs, or be endless."""
    return text[:1000].encode("utf-8", "replace").decode("utf-8")


def unavailable(message: str, retry_after: int | None = None, code: str = "unavailable") -> Problem:
    """A 503; retry_after: seconds after which it may be worth trying again."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Problem(503, message, code=code, headers=headers)


def install(app: FastAPI) -> None:
    """Let every error of the application leave in OpenAI's shape."""

    @app.exception_handler(AnyHTTPException)
    async def http_exception(request: Request, error: AnyHTTPException) -> JSONResponse:
        if isinstance(error, Problem):
            return error.response()
        message = {
            404: f"there is no {request.url.path}: see /openapi.json for what there is",
            405: f"{request.method} is not allowed for {request.url.path}",
        }.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return Problem(error.status_code, message, headers=headers).response()

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return _of_validation(error).response()

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        log.critical("%s %s failed", request.method, request.url.path, exc_info=error)
        return Problem(500, "an error of the server: its log says more", code="internal_error").response()


def _of_validation(error: RequestValidationError) -> Problem:
    """The first failed check, since a client mends one thing at a time."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query")]
    param = ".".join(where) or None
    if first["type"] == "extra_forbidden":
        return Problem(
            400,
            f"{param} is not a parameter of this request that this server can honour",
            param=param,
            code="unknown_parameter",
        )
    if param is None and first["type"] == "missing":
        return Problem(400, "the request has no body: send a JSON object", code="missing_parameter")
    said = first["msg"].removeprefix("Value error, ")
    code = "missing_parameter" if first["type"] == "missing" else "invalid_value"
    return Problem(400, f"{param}: {said}" if param else said, param=param, code=code)
