"""A request in its slot, while its prompt is read and its answer is written."""

from __future__ import annotations

from typing import Protocol

from h2o_runtime.answers.completion import TextEvent
from h2o_runtime.answers.events import Run
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import H2OError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.sessions.pool import SharedPrompt


class Task(Protocol):
    """A request, and the receiver of its events."""

    @property
    def request(self) -> Request: ...

    @property
    def watch(self) -> Watch: ...

    @property
    def shared(self) -> SharedPrompt | None:
        """The prompt that several tasks share; None if only this task has it."""

    def began(self, slot: int, generator: Generator) -> None:
        """It has a slot, with this generator."""

    def event(self, event: TextEvent) -> None:
        """An event of the answer has arrived."""

    def ended(self, error: Exception | None) -> None:
        """Its slot is free again. error: why it did not finish."""


class Running:
    """A task in its slot.

    reading  whether its prompt is being read, or waits to be
    wanted   tokens of the step that it waits for, after its prompt is read
    begun    whether it has run at all
    found    tokens of its prompt that need not be read, as estimated before it begins; None: not estimated
    """

    def __init__(self, task: Task, slot: int, generator: Generator, run: Run[TextEvent]) -> None:
        self.task, self.slot, self.generator, self.run = task, slot, generator, run
        self.wanted: tuple[int, ...] = ()
        self.reading, self.begun = True, False
        self.found: int | None = None

    @property
    def left(self) -> int:
        """Tokens of the prompt that are not read yet; before it begins, an estimate. 0 if the client has left: its
        slot is then free at once.
        """
        if self.task.watch.cancelled():
            return 0
        prompt = len(self.task.request.prompt.ids)
        if self.begun:
            return prompt - self.generator.length
        if self.found is None:
            self.found = self._found()
        return prompt - self.found

    def _found(self) -> int:
        """Tokens of the prompt that the slots and the pool hold."""
        request, shared = self.task.request, self.task.shared
        if shared is not None and shared.session is not None:
            return len(request.prompt.ids)
        if not request.reuse:
            return 0
        try:
            return self.generator.finds(request.prompt.ids, request.prefill)
        except H2OError:  # the prompt is refused once it runs
            return len(request.prompt.ids)

    def missing_blocks(self) -> int:
        """Blocks that it needs in addition to its own, for its next step or for the rest of its prompt."""
        store, length = self.generator.session.store, self.generator.length
        if self.wanted:
            return store.missing_blocks(length, len(self.wanted))
        prompt = min(len(self.task.request.prompt.ids), self.generator.context)
        if self.begun:
            return store.missing_blocks(length, prompt - length)
        if self.task.shared is not None and self.task.shared.session is not None:
            return 0
        reused, pool = self._reused(), self.generator.pool
        # The slot's conversation may then wait in the pool, where it keeps its blocks.
        return store.missing_blocks(reused, prompt - reused, waiting=pool.several) + 1

    def _reused(self) -> int:
        """Tokens of the prompt that the slot holds."""
        request = self.task.request
        if not request.reuse:
            return 0
        try:
            return min(self.generator.keeps(request.prompt.ids, request.prefill), self.generator.context)
        except H2OError:  # the prompt is refused once it runs
            return 0
