"""Answers that are JSON by construction: llguidance says after each token which ones may follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.errors import BackendError, ConfigError

__all__ = ["Grammar", "GrammarCompiler"]

# Small models love to fill an answer with blanks, which flexible whitespace would let them do for ever.
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarCompiler:
    """Makes grammars for one bundle's tokenizer. Any thread may use it."""

    def __init__(self, folder: str | Path, vocab_size: int, end_ids: Collection[int]) -> None:
        """folder: of the bundle. vocab_size: the model's. end_ids: tokens that may follow a complete answer.

        Raises BackendError when llguidance is missing or cannot use the tokenizer.
        """
        try:
            import llguidance
        except ImportError as error:
            raise BackendError(
                "structured answers need the package llguidance: pip install 'h2o-edge[serve]'"
            ) from error
        if not end_ids:
            raise BackendError(
                "structured answers need a token that ends an answer, and this bundle names none"
            )
        self._library = llguidance
        self._vocab_size = vocab_size
        try:
            self._tokenizer = llguidance.LLTokenizer(
                (Path(folder) / "tokenizer.json").read_text(encoding="utf-8"),
                n_vocab=vocab_size,
                eos_token=sorted(end_ids),
            )
        except Exception as error:  # the library raises plain ValueError and RuntimeError
            raise BackendError(f"llguidance cannot use this bundle's tokenizer ({error})") from error

    def json_schema(self, schema: Mapping[str, Any], *, field: str) -> Grammar:
        """Answers that are one JSON value of `schema`. Raises ConfigError that names `field`."""
        try:
            source = self._library.LLMatcher.grammar_from_json_schema(dict(schema), overrides=_COMPACT)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{field} is not a JSON schema: {error}", field=field) from error
        return self._grammar(source, field)

    def token_bytes(self, token: int) -> bytes:
        """What the token stands for, which may be a part of a character only."""
        return bytes(self._tokenizer.decode_bytes([token]))

    def _grammar(self, source: str, field: str) -> Grammar:
        matcher = self._library.LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0]
            raise ConfigError(f"{field} cannot be followed: {reason}", field=field)
        return Grammar(matcher, self._vocab_size)


class Grammar:
    """A `Constraint` by llguidance's matcher."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self._fail()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            self._fail()

    def _fail(self) -> None:
        reason = self._matcher.get_error().partition("\n")[0]
        raise BackendError(f"the answer's grammar cannot go on ({reason}): give a simpler schema")
