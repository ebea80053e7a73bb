"""Whose prompt is read next: the one with the fewest tokens left, so that short prompts do not wait for long ones
and equal prompts are read one after another. One piece in `SHARE` goes to the prompt that came first, so that
none waits forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

SHARE = 4


class Reader(Protocol):
    """A prompt that is being read. left: its tokens that are not read yet."""

    @property
    def left(self) -> int: ...


AnyReader = TypeVar("AnyReader", bound=Reader)


class ReadingOrder:
    """Chooses a prompt for each piece."""

    def __init__(self) -> None:
        self._overtaken = 0  # pieces read since the prompt that came first had one

    def next(self, readers: Sequence[AnyReader]) -> AnyReader | None:
        """The prompt whose piece is read now. readers: the one that came first, first."""
        if not readers:
            return None
        first = readers[0]
        turn = len(readers) == 1 or self._overtaken == SHARE - 1
        chosen = first if turn else min(readers, key=lambda reader: reader.left)
        self._overtaken = 0 if chosen is first else self._overtaken + 1
        return chosen
