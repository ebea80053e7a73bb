"""Limits on a request that follow from the model's context: larger requests are refused at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from h2o_runtime.text_model import TextModel
from h2o_server.http.problems import Problem, or_larger_context

LISTS = ("/v1/embeddings", "/embeddings")  # paths whose bodies hold many inputs

_REST = 256 << 10  # bytes for everything except the prompt: schemas, options, names
_ESCAPED = 6  # the most bytes of JSON for one byte of text, as in \u0007
_VALUES_A_TOKEN = 4  # the most JSON values for one token of the prompt: a message, its role and its content
_MORE_VALUES = 10_000
_LISTED_VALUES = 300_000  # in a list of inputs, each of which may fill the context: tokens that OpenAI allows


@dataclass(frozen=True)
class Room:
    """The largest request that may be answered.

    body_bytes  of a request's body
    values      JSON values in a body
    text_bytes  of a text that is only tokenized; it may exceed the context, so that the client learns by how much
    context     tokens; None while the model is loading
    trained     the model's own limit of tokens
    listed      whether a body may hold many inputs, each of which may fill the context
    """

    body_bytes: int
    values: int = 100_000
    text_bytes: int = _REST
    context: int | None = None
    trained: int | None = None
    listed: bool = False

    @property
    def tokens(self) -> int:
        """The most tokens of a text that is only tokenized."""
        return max(self.context or 0, _REST)

    @classmethod
    def of(cls, model: TextModel, most_bytes: int) -> Room:
        """most_bytes: of a body, whatever the context holds."""
        context, spec = model.generator.context, model.generator.model
        vocab, trained = spec.vocab_size, spec.max_position_embeddings
        values = (
            _VALUES_A_TOKEN * context + vocab + _MORE_VALUES
        )  # the vocabulary: a logit_bias may name all of it
        longest = model.tokenizer.longest_token
        if longest is None:  # any text may be only a few tokens
            return cls(most_bytes, values, most_bytes, context, trained)
        a_token = max(_ESCAPED * longest, len(f"{vocab}, "))  # as text or as a number
        text_bytes = max(_REST, context * longest)
        return cls(min(most_bytes, _REST + context * a_token), values, text_bytes, context, trained)

    def for_list(self, most_bytes: int) -> Room:
        """For a list of inputs. most_bytes: of a body."""
        values = max(self.values, _LISTED_VALUES)
        return replace(self, body_bytes=most_bytes, values=values, listed=True)

    def too_many(self) -> Problem:
        """The error for more values."""
        why = (
            "send the inputs in several requests"
            if self.listed
            else f"no request that fits the context of {self.context} tokens has as many"
        )
        message = f"the body has more than {self.values} JSON values: {why}"
        return Problem(400, message, code="invalid_json")

    def too_long(self, most_bytes: int) -> Problem:
        """The error for a longer body."""
        close = {"Connection": "close"}  # the rest of the body is not read
        if self.body_bytes == most_bytes:
            message = (
                f"the body is longer than {most_bytes} bytes: send less, or start the server with a larger "
                "--limits body=MIB"
            )
            return Problem(413, message, code="body_too_long", headers=close)
        larger = or_larger_context(self.context or 0, self.trained, 0)
        message = (
            f"the body is longer than {self.body_bytes} bytes, and the context of {self.context} tokens cannot "
            f"hold the text of a longer one: shorten the prompt{larger}"
        )
        return Problem(413, message, code="context_length_exceeded", headers=close)
