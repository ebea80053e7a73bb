"""Separates a model's thoughts from its answer, as both are generated: <think>…</think>, then text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True)
class Thought:
    """More of what the model thinks."""

    text: str


class _State(Enum):
    OPEN = auto()  # thoughts may still begin
    BEGUN = auto()  # blanks before the first thought are left out
    THINKING = auto()
    ENDED = auto()  # blanks before the answer are left out
    TEXT = auto()


class ReasoningReader:
    """Reads one answer. Blanks before and after the thoughts are dropped."""

    def __init__(self, thinks: bool, prompt: str) -> None:
        """thinks: whether the chat template supports thoughts. prompt: its end may already begin them."""
        began = prompt.rstrip().endswith(BEGIN)
        self._state = _State.TEXT if not thinks else _State.BEGUN if began else _State.OPEN
        self._pending = ""

    def push(self, text: str) -> list[Thought | str]:
        """The parts of the answer that are certain after `text`."""
        self._pending += text
        found: list[Thought | str] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[Thought | str]:
        """The rest, as no more comes."""
        rest, self._pending = self._pending, ""
        if not rest or self._state in (_State.BEGUN, _State.ENDED):
            return []
        return [Thought(rest.rstrip())] if self._state is _State.THINKING and rest.strip() else [rest]

    def _step(self, found: list[Thought | str]) -> bool:
        """Read on → whether there may be more to read."""
        if self._state is _State.OPEN:
            return self._open()
        if self._state in (_State.BEGUN, _State.ENDED):
            self._pending = self._pending.lstrip()
            if self._pending:
                self._state = _State.THINKING if self._state is _State.BEGUN else _State.TEXT
            return bool(self._pending)
        if self._state is _State.THINKING:
            return self._think(found)
        if self._pending:
            found.append(self._pending)
            self._pending = ""
        return False

    def _open(self) -> bool:
        begun = self._pending.lstrip()
        if begun.startswith(BEGIN):
            self._state, self._pending = _State.BEGUN, begun[len(BEGIN) :]
            return True
        if BEGIN.startswith(begun):
            return False
        self._state = _State.TEXT
        return True

    def _think(self, found: list[Thought | str]) -> bool:
        thought, end, rest = self._pending.partition(END)
        if end:
            self._state, self._pending = _State.ENDED, rest
            thought = thought.rstrip()
        else:
            partial = next(n for n in range(len(END) - 1, -1, -1) if thought.endswith(END[:n]))
            certain = thought[: len(thought) - partial].rstrip()
            self._pending, thought = thought[len(certain) :], certain
        if thought:
            found.append(Thought(thought))
        return bool(end)
