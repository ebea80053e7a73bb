"""All errors that a user of the toolchain can cause or see.

All derive from `H2OError`, so a command catches one class, prints its message and exits with 1. A message has one
or two sentences: what was wrong and where, then what to do. Our own bugs (a broken invariant) are not here: they
stay `AssertionError` or other Python errors, with a traceback.

This module imports nothing, so that the export side, the commands and the tests can import it anywhere.
"""

from __future__ import annotations

# How libraries say that the system gave them no memory: the C++ runtime, the C library, the loader of shared
# libraries, protobuf, ONNX Runtime.
_NO_MEMORY = (
    "bad_alloc",
    "annot allocate memory",
    "failed to map segment",
    "Arena alloc failed",
    "Failed to allocate memory",
)


class H2OError(Exception):
    """Base of all errors whose message is written for the user; print it without a traceback."""

    def __reduce__(self) -> tuple[object, tuple[type, str, dict[str, object]]]:
        """Rebuild from the finished message: the arguments of some classes are others."""
        return _rebuilt, (type(self), str(self), vars(self))


class BundleError(H2OError):
    """A file of a bundle is missing, truncated, altered or unreadable.

    The message names the file and says how to get a good one (usually: export the checkpoint again).
    """


class BundleChangedError(BundleError):
    """A file of a loaded bundle was written into, or replaced before it was read: what is loaded is of no use."""


class ConfigError(H2OError, ValueError):
    """A value of a configuration (a policy, a cache, `Sampling`, a load option) is out of its range.

    `field` is the name of the offending field, or the empty string. The message begins with that name and
    says which values are accepted. It is also a `ValueError`, so that other code handles it as a bad
    argument, and pydantic reports it as a failed validation.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ContextOverflowError(H2OError):
    """The prompt, or the prompt with its answer, does not fit in the context of the loaded model.

    `n_prompt_tokens` is the number of requested tokens and `n_ctx` the number that fit; a server reports both.
    With `at_least` the count is a lower bound. `field` is the request's field with the prompt, or the empty
    string.
    """

    def __init__(
        self,
        n_prompt_tokens: int,
        n_ctx: int,
        message: str | None = None,
        at_least: bool = False,
        *,
        field: str = "",
    ) -> None:
        has = f"at least {n_prompt_tokens}" if at_least else n_prompt_tokens
        super().__init__(
            message
            or f"the prompt has {has} tokens and the context holds {n_ctx}: load the model with "
            f"context={n_prompt_tokens + 1} or more (leave room for the answer), or shorten the prompt"
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx
        self.at_least = at_least
        self.field = field


class UnknownTokenError(H2OError):
    """A token id is negative or not below the size of the vocabulary.

    `token` is the offending id, `position` its index in the sequence (None when there is only one token) and
    `vocab_size` the number of ids the model knows.
    """

    def __init__(self, token: int, vocab_size: int, position: int | None = None) -> None:
        where = "" if position is None else f" at position {position}"
        super().__init__(
            f"token id {token}{where} is outside the vocabulary of {vocab_size}: ids run from 0 to "
            f"{vocab_size - 1}; encode the text with the tokenizer of this very bundle"
        )
        self.token = token
        self.vocab_size = vocab_size
        self.position = position


class BackendError(H2OError):
    """A backend or an attention provider is missing, cannot be used on this machine, or failed while running.

    The message says which package to install, or which other backend to choose.
    """


class OutOfMemoryError(BackendError):
    """The system gave a library too little memory to load or to run something; the message names it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"out of memory: {what}; lower the context or the batch size, use smaller weights, or end other "
            "processes"
        )
        self.what = what


class InputError(H2OError):
    """The text given as input cannot be used: empty, invalid UTF-8, messages that a chat template refuses.

    For invalid UTF-8 `offset` is the position of the first bad byte; otherwise it is None.
    """

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class OutputError(H2OError):
    """The place where a command should write cannot be used: it exists, is read-only, or the disk is full."""


class ServerError(H2OError):
    """The server cannot start, for example because its port is taken."""


class CheckpointError(H2OError):
    """A file of the checkpoint is missing, truncated or contradicts another; the message names it."""


class UnsupportedModelError(H2OError):
    """The checkpoint is sound but uses a feature that the exporter does not know; the message names it."""


class Cancelled(H2OError):  # noqa: N818 - not a fault: the user's own wish, so it does not end in "Error"
    """The request was cancelled between two steps of work, because the caller asked for it."""


def _rebuilt(kind: type[H2OError], message: str, attributes: dict[str, object]) -> H2OError:
    error = kind.__new__(kind, message)
    vars(error).update(attributes)
    return error


def short_of_memory(error: BaseException) -> bool:
    """Whether the cause of an error is that memory is short: each library has a type of its own for that."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


def unimportable(error: ImportError, advice: str) -> BackendError:
    """The error to raise for a package that cannot be imported. advice: what to install if it is not there."""
    return OutOfMemoryError("a library cannot be loaded") if short_of_memory(error) else BackendError(advice)
