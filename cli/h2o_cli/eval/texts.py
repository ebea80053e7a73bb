"""The documents: the user's own files, or Python's manual, which comes with Python."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from h2o_cli.eval.readings import IntArray
from h2o_cli.eval.suite import TEXTS, Half, Source
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import Tokenizer, decode_utf8

log = logging.getLogger(__name__)

MANUALS = 2  # parts of Python's manual, if no text is named
_CHARACTERS = 12  # characters; almost every token has fewer


@dataclass(frozen=True)
class Document:
    """name  as reports write it
    ids   int64 [N], of exactly as many tokens as were asked for
    """

    name: str
    ids: IntArray

    @property
    def sha256(self) -> str:
        """Of its tokens."""
        return hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()


def from_files(
    files: Sequence[Path], tokenizer: Tokenizer, tokens: int, vocabulary: int
) -> tuple[Document, ...]:
    """The first `tokens` tokens of each. Raises InputError for a file that has fewer, or is not text."""
    names = [path.name for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    return tuple(
        Document(name, _cut(name, decode_utf8(read_input(path), str(path)), tokenizer, tokens, vocabulary))
        for name, path in zip(names, files, strict=True)
    )


def from_suite(
    half: Half, tokenizer: Tokenizer, tokens: int, vocabulary: int, least: int, most: int
) -> tuple[Document, ...]:
    """The first texts of a half that have so many tokens. Raises ConfigError if there are fewer than `least`."""
    if most > len(TEXTS[half]):
        raise ConfigError(
            f"the half {half!r} has {len(TEXTS[half])} texts: lower texts of `suite`", field="suite"
        )
    found = from_sources(TEXTS[half], tokenizer, tokens, vocabulary, most)
    if len(found) < least:
        raise ConfigError(
            f"the half {half!r} has {len(found)} texts of {tokens:,} tokens: lower texts of `suite`, `length` or "
            "`decoded`",
            field="suite",
        )
    if len(found) < most:
        log.warning("only %d of the suite's %d texts have %s tokens", len(found), most, f"{tokens:,}")
    return found


def from_sources(
    sources: Iterable[Source], tokenizer: Tokenizer, tokens: int, vocabulary: int, count: int
) -> tuple[Document, ...]:
    """The first `tokens` tokens of the first `count` texts that have so many, or of fewer texts. Raises InputError
    for one that does not exist."""
    long_enough = (
        Document(source.name, ids)
        for source in sources
        if len(ids := _ids(source.text(), tokenizer, tokens, vocabulary)) == tokens
    )
    return tuple(itertools.islice(long_enough, count))


def from_manual(tokenizer: Tokenizer, tokens: int, vocabulary: int) -> tuple[Document, ...]:
    """Disjoint parts of Python's manual, from places as far apart as possible."""
    text = manual()
    step = len(text) // MANUALS
    return tuple(
        Document(
            f"python-manual-{1 + index}",
            _cut("Python's manual", text[index * step :][:step], tokenizer, tokens, vocabulary),
        )
        for index in range(MANUALS)
    )


def manual() -> str:
    """Python's own manual of its language, as `help()` shows it."""
    from pydoc_data.topics import topics

    return "\n\n".join(str(topics[name]).strip() for name in sorted(topics))


def prompt_ids(bundle: Bundle, file: Path | None, tokens: int) -> list[int]:
    """The first `tokens` tokens of a text, by default Python's manual. Ids beyond a (test) vocabulary wrap around.

    Raises InputError for a text with fewer than 2 tokens.
    """
    if file is None:
        from pydoc_data.topics import topics

        text = "\n".join(str(topic) for topic in topics.values())[: _CHARACTERS * tokens]
    else:
        text = decode_utf8(read_input(file), str(file))
    ids = Tokenizer.load(bundle.folder).encode(text)[:tokens]
    if len(ids) < 2:
        raise InputError(f"{file}: its text has fewer than 2 tokens; name a longer one")
    return [token % bundle.manifest.model.vocab_size for token in ids]


def _cut(name: str, text: str, tokenizer: Tokenizer, tokens: int, vocabulary: int) -> IntArray:
    ids = _ids(text, tokenizer, tokens, vocabulary)
    if len(ids) < tokens:
        raise InputError(
            f"{name} has {len(ids):,} tokens and {tokens:,} are needed: give a longer text, or lower --length or "
            "--decode-tokens"
        )
    return ids


def _ids(text: str, tokenizer: Tokenizer, tokens: int, vocabulary: int) -> IntArray:
    """The first `tokens` tokens, or all if there are fewer."""
    ids = tokenizer.encode(text[: _CHARACTERS * tokens])
    if len(ids) < tokens:
        ids = tokenizer.encode(text)
    # A test's vocabulary may be smaller than its tokenizer's.
    return np.array(ids[:tokens], np.int64) % vocabulary
