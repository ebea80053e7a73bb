"""The documents: the user's own files, or Python's manual, which comes with Python."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from h2o_cli.eval.readings import IntArray
from h2o_cli.eval.suite import Source
from h2o_runtime.errors import InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import Tokenizer, decode_utf8

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
    return tuple(
        Document(name, _cut(name, _read(path), tokenizer, tokens, vocabulary))
        for name, path in zip(_names(files), files, strict=True)
    )


def from_sources(
    sources: Sequence[Source], tokenizer: Tokenizer, tokens: int, vocabulary: int
) -> tuple[Document, ...]:
    """The first `tokens` tokens of each. Raises InputError for one that has fewer, or does not exist."""
    return tuple(
        Document(one.name, _cut(one.name, one.text(), tokenizer, tokens, vocabulary)) for one in sources
    )


def from_manual(count: int, tokenizer: Tokenizer, tokens: int, vocabulary: int) -> tuple[Document, ...]:
    """Disjoint parts of Python's manual, from places as far apart as possible."""
    text = manual()
    step = len(text) // count
    return tuple(
        Document(
            f"python-manual-{1 + index}",
            _cut("Python's manual", text[index * step :][:step], tokenizer, tokens, vocabulary),
        )
        for index in range(count)
    )


def manual() -> str:
    """Python's own manual of its language, as `help()` shows it."""
    from pydoc_data.topics import topics

    return "\n\n".join(str(topics[name]).strip() for name in sorted(topics))


def _names(files: Sequence[Path]) -> list[str]:
    """File names if they differ, otherwise full paths."""
    names = [path.stem for path in files]
    return names if len(set(names)) == len(names) else [str(path) for path in files]


def _read(path: Path) -> str:
    return decode_utf8(read_input(path), str(path))


def _cut(name: str, text: str, tokenizer: Tokenizer, tokens: int, vocabulary: int) -> IntArray:
    ids = tokenizer.encode(text[: _CHARACTERS * tokens])
    if len(ids) < tokens:
        ids = tokenizer.encode(text)
    if len(ids) < tokens:
        raise InputError(
            f"{name} has {len(ids):,} tokens and {tokens:,} are needed: give a longer text, or lower --length or "
            "--decode-tokens"
        )
    # A test's vocabulary may be smaller than its tokenizer's.
    return np.array(ids[:tokens], np.int64) % vocabulary
