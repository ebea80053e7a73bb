"""All errors that clients get: in OpenAI's format, and under /v1/messages in Anthropic's."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from h2o_runtime.errors import (
    BundleChangedError,
    ConfigError,
    ContextOverflowError,
    H2OError,
    InputError,
    UnknownTokenError,
)

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
}


_SLIP = 0.8  # share of characters that a misspelt name has in common with the right one

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
RESTART = 10  # seconds after which a client may find the server restarted
MESSAGES = "/v1/messages"  # errors in Anthropic's format


class Problem(HTTPException):
    """A request that cannot be answered.

    status   HTTP status
    param    the wrong parameter, by its path in the body, such as "messages.0.content"
    code     a word for programs, such as "context_length_exceeded"
    headers  further headers of the response, such as Retry-After
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

    def body(self, path: str = "") -> dict[str, Any]:
        """The response's JSON value on a request for `path`; in most streams also an event."""
        error = {"message": self.message, "param": self.param, "code": self.code} | self.more
        if path.startswith(MESSAGES):
            kind = _ANTHROPIC_TYPES.get(self.status_code, "invalid_request_error")
            return {"type": "error", "error": {"type": kind, **error}}
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        return {"error": {"type": kind, **error}}

    def response(self, path: str) -> JSONResponse:
        """To a request for `path`."""
        return JSONResponse(self.body(path), self.status_code, self.headers)

    @classmethod
    def of(cls, error: Exception, trained: int | None = None) -> Problem:
        """The client's message for an error of the runtime. trained: the model's own limit, where known."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, ContextOverflowError):
            has = f"at least {error.n_prompt_tokens}" if error.at_least else error.n_prompt_tokens
            # litellm recognises it by "this model's maximum context length is", LangChain by "prompt is too
            # long".
            message = (
                f"the prompt has {has} tokens, and this model's maximum context length is "
                f"{error.n_ctx}; as the prompt is too long, shorten it"
                f"{or_larger_context(error.n_ctx, trained, error.n_prompt_tokens)}"
            )
            sizes = {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
            return cls(400, message, param=error.field or None, code="context_length_exceeded", more=sizes)
        if isinstance(error, ConfigError):
            return cls(400, str(error), param=error.field or None, code="invalid_value")
        if isinstance(error, (InputError, UnknownTokenError)):
            return cls(400, str(error), code="invalid_value")
        if isinstance(error, BundleChangedError):
            return unavailable(str(error), RESTART, "bundle_changed")
        says = (
            str(error) if isinstance(error, H2OError) else "inference has failed: the server's log says why"
        )
        return cls(500, says, code="inference_failed")


def or_larger_context(context: int, trained: int | None, tokens: int) -> str:
    """What helps besides a shorter prompt: a larger context, unless the model was trained for no more."""
    if trained is None or max(context, tokens) >= trained:
        return ""
    return f", or start the server with a larger --ctx-size, of at most {trained}"


def outcome_of(status: int) -> str:
    """The outcome in /metrics of a request that is answered with an error."""
    return "invalid" if status < 500 else "refused" if status == 503 else "failed"


def _proper(text: str) -> str:
    """Text that can be sent: names in a client's JSON may contain lone surrogates, or be very long."""
    return text[:1000].encode("utf-8", "replace").decode("utf-8")


def unavailable(message: str, retry_after: int | None = None, code: str = "unavailable") -> Problem:
    """A 503; retry_after: seconds after which a retry is worthwhile."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Problem(503, message, code=code, headers=headers)


def shutting_down() -> Problem:
    """The error of every request that arrives, waits or runs too long while the server stops."""
    return unavailable(
        "the server is shutting down: try again once it has been restarted", RESTART, "shutting_down"
    )


def defect() -> Problem:
    """The error of a request on which the server itself has failed."""
    return Problem(500, "the server has failed on this request: its log has the error", code="internal_error")


def install(app: FastAPI) -> None:
    """Convert every error of the application to the format that its client knows."""

    @app.exception_handler(AnyHTTPException)
    async def http_exception(request: Request, error: AnyHTTPException) -> JSONResponse:
        if isinstance(error, Problem):
            return error.response(request.url.path)
        message = {
            404: f"there is no {request.url.path}: see /openapi.json for what there is",
            405: f"{request.method} is not allowed for {request.url.path}",
        }.get(error.status_code, str(error.detail))
        headers = dict(error.headers) if error.headers else None
        return Problem(error.status_code, message, headers=headers).response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return of_validation(error.errors(), error.body).response(request.url.path)


class _Complaint(NamedTuple):
    """A failed pydantic check in the request's terms. place: where in the request."""

    place: list[Any]
    kind: str
    says: str

    @classmethod
    def of(cls, failure: Any, body: Any) -> _Complaint:
        kind, context = failure["type"], failure.get("ctx", {})
        says = failure["msg"].removeprefix("Value error, ")
        place = _place(failure["loc"], kind, body)
        if kind in ("union_tag_not_found", "union_tag_invalid"):
            place.append(context["discriminator"].strip("'"))
            kind = "missing" if kind == "union_tag_not_found" else kind
            says = f"Input should be one of {context.get('expected_tags')}"
        elif kind in ("model_attributes_type", "model_type", "dict_type"):
            says = "Input should be an object"
        return cls(place, kind, says)


def of_validation(failures: Sequence[Any], body: Any, names: Collection[str] = ()) -> Problem:
    """One failed check, because clients fix one thing at a time. names: of fields that may be suggested.

    For a union, pydantic reports the failures of every member. A wrong type is the least useful failure,
    because a value has the wrong type for most members. Of the others, the deepest one probably belongs to the
    intended member.
    """
    complaints = [_Complaint.of(failure, body) for failure in failures]
    complaints = [complaint for complaint in complaints if complaint.place[:1] == complaints[0].place[:1]]
    telling = [complaint for complaint in complaints if not complaint.kind.endswith("_type")]
    complaints = telling or complaints
    deepest = max(complaints, key=lambda complaint: len(complaint.place))
    complaints = [complaint for complaint in complaints if complaint.place == deepest.place]
    place, kind, says = deepest
    param = ".".join(map(str, place)) or None
    if kind == "missing":
        return Problem(400, f"{param or 'a body'} is missing", param=param, code="missing_parameter")
    if kind == "extra_forbidden":
        near = _meant(str(param), names) if len(place) == 1 else None
        hint = f"did you mean {near}?" if near else "leave it out"
        return Problem(
            400,
            f"{param} is not a parameter of this request that this server can honour: {hint}",
            param=param,
            code="unknown_parameter",
        )
    says, *others = dict.fromkeys([says] if telling else [complaint.says for complaint in complaints])
    says = " or ".join([says, *(says_too.removeprefix("Input should be ") for says_too in others)])
    return Problem(400, f"{param or 'the body'}: {says}", param=param, code="invalid_value")


def _meant(given: str, names: Collection[str]) -> str | None:
    """The name that a client probably means: a misspelt one, or one with all words of the given one. A single word
    says too little: "prompt" is not "prompt_cache_key".
    """
    slips = get_close_matches(given, names, n=1, cutoff=_SLIP)
    words = set(given.split("_"))
    longer = sorted(name for name in names if len(words) > 1 and words <= set(name.split("_")))
    return next(iter([*slips, *longer]), None)


def _place(loc: tuple[Any, ...], kind: str, body: Any) -> list[Any]:
    """The steps of `loc` that exist in the request, without the names of union members between them."""
    source, *steps = loc
    if source != "body":
        return steps
    place: list[Any] = []
    for step, following in itertools.zip_longest(steps, steps[1:]):
        if isinstance(body, dict) and following in body and step == body.get("type"):
            continue  # a union's member, whose name may be that of a field too
        if (isinstance(body, dict) and step in body) or (isinstance(body, list) and isinstance(step, int)):
            body = body[step]
            place.append(step)
    return place + steps[-1:] if kind == "missing" else place
