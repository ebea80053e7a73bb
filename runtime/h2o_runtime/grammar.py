"""Answers that are JSON by construction: llguidance says after each token which ones may follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.errors import BackendError, ConfigError

__all__ = ["Grammar", "GrammarCompiler"]

# Small models love to fill an answer with blanks, which flexible whitespace would let them do for ever.
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarCompiler:
    """Makes grammars for one bundle's tokenizer, which is read when it is first needed.

    That first time belongs to one thread; afterwards any may use it.
    """

    def __init__(self, folder: str | Path, vocab_size: int, end_ids: Collection[int]) -> None:
        """folder: of the bundle. vocab_size: the model's. end_ids: tokens that may follow a complete answer."""
        self._folder = Path(folder)
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)

    def json_schema(self, schema: Mapping[str, Any], *, field: str) -> Grammar:
        """Answers that are one JSON value of `schema`. Raises ConfigError that names `field`, BackendError."""
        self._check_ends(field)
        try:
            source = self._library.LLMatcher.grammar_from_json_schema(dict(schema), overrides=_COMPACT)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{field} is not a JSON schema: {error}", field=field) from error
        return self._grammar(source, field)

    def gbnf(self, text: str, *, field: str) -> Grammar:
        """Answers that follow a grammar in llama.cpp's notation. Errors are those of `json_schema`."""
        self._check_ends(field)
        try:
            lark = self._library.gbnf_to_lark.gbnf_to_lark(text)
            source = self._library.LLMatcher.grammar_from_lark(lark)
        except Exception as error:  # the converter stumbles over errors in many ways
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{field} is not a GBNF grammar: {reason}", field=field) from error
        return self._grammar(source, field)

    def _grammar(self, source: Any, field: str) -> Grammar:
        grammar = Grammar(
            self._library.LLMatcher(self._tokenizer, source, log_level=0), self._vocab_size, field
        )
        grammar.allowed()  # a schema that leads nowhere compiles well enough
        return grammar

    def _check_ends(self, field: str) -> None:
        if not self._end_ids:
            raise ConfigError(
                f"{field} cannot be honoured: this model has no token that ends an answer", field=field
            )

    def token_bytes(self, token: int) -> bytes:
        """What the token stands for, which may be a part of a character only. Raises BackendError."""
        return bytes(self._tokenizer.decode_bytes([token]))

    @cached_property
    def _library(self) -> Any:
        try:
            import llguidance
            import llguidance.gbnf_to_lark
        except ImportError as error:
            raise BackendError(
                "structured answers need the package llguidance: pip install 'h2o-edge[serve]'"
            ) from error
        return llguidance

    @cached_property
    def _tokenizer(self) -> Any:
        text = (self._folder / "tokenizer.json").read_text(encoding="utf-8")
        try:
            return self._library.LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._end_ids or None)
        except Exception as error:  # the library raises plain ValueError and RuntimeError
            raise BackendError(f"llguidance cannot use this bundle's tokenizer ({error})") from error


class Grammar:
    """A `Constraint` by llguidance's matcher. Raises ConfigError that names `field`, where the schema was."""

    def __init__(self, matcher: Any, vocab_size: int, field: str) -> None:
        self._matcher = matcher
        self._bits = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._vocab_size = vocab_size
        self._field = field
        self._check()

    def allowed(self) -> NDArray[np.bool_]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise ConfigError(
                f"{self._field} cannot be followed ({reason}): give a simpler schema", field=self._field
            )
