"""Several answers at once: each turn computes one step of all answers; after a few steps it also reads a piece.

So a stream waits for its next token no longer than a piece takes. `reading_order` chooses the prompt that is
read. If slots share memory and it runs short, later runs wait (`block_room`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from h2o_runtime.answers.completion import TextEvent
from h2o_runtime.answers.events import PromptPieceRead, Run, StepWanted
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import ConfigError, H2OError
from h2o_runtime.execution.answer_steps import decode_together
from h2o_runtime.execution.watch import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.block_room import BlockRoom
from h2o_server.scheduling.reading_order import ReadingOrder

STEP_TOKENS = 256  # of a piece, for which all answers get one step: a step takes a small part of their time


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


class _Running:
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


class Scheduler:
    """Belongs to the thread that runs the model. Unexpected errors leave it unchanged."""

    def __init__(self, model: TextModel, prompt_piece: int | None) -> None:
        """prompt_piece: the approximate number of prompt tokens read in one turn; None reads prompts at
        once.
        """
        self._model, self._prompt_piece = model, prompt_piece
        self._free = list(range(len(model.slots)))  # least recently used first
        self._running: list[_Running] = []  # the one that came first, first
        self._order = ReadingOrder()
        self._steps_between = max(1, (prompt_piece or 0) // STEP_TOKENS)  # two pieces
        self._steps = 0  # since the last piece
        self._room = BlockRoom(model.slots)

    @property
    def tasks(self) -> Iterator[Task]:
        """Those that run."""
        return (running.task for running in self._running)

    @property
    def idle(self) -> bool:
        return not self._running

    def start(self, task: Task) -> None:
        """Give the task a slot; one must be free."""
        slot = self._slot_for(task.request)
        self._free.remove(slot)
        generator = self._model.slots[slot]
        run = self._model.run(task.request, task.watch, generator, self._prompt_piece, task.shared)
        self._running.append(_Running(task, slot, generator, run))
        task.began(slot, generator)

    def turn(self) -> None:
        """One step of all answers; then one piece of one prompt, if they had enough steps since the last one."""
        fitting = list(self._room.fitting(self._running))
        writing = [run for run in fitting if run.wanted]
        self._step(writing)
        self._steps += 1
        if writing and self._steps < self._steps_between:
            return
        self._steps = 0
        reading = self._order.next([run for run in fitting if run.reading])
        # To make room for a later run, the shared prompt of this one may have been dropped.
        if reading is not None and self._room.fits(reading):
            self._go_on(reading)
            if not reading.reading:  # others may begin like it
                for run in self._running:
                    run.found = None

    @property
    def set_aside(self) -> int:
        """The number of runs whose rows are moved out because memory is short."""
        return sum(run.generator.session.store.moved for run in self._running)

    def _step(self, writing: list[_Running]) -> None:
        if not writing:
            return
        forward = self._model.generator.loaded.forward
        steps = [(run.generator.session, run.wanted) for run in writing]
        try:
            rows = list(decode_together(forward, steps))
        except H2OError as error:
            for running in writing:
                self._end(running, error)
            return
        for running, logits in zip(writing, rows, strict=True):
            self._go_on(running, logits)

    def _go_on(self, running: _Running, logits: object = None) -> None:
        """Run the task to its next pause or its end."""
        running.wanted, running.reading, running.begun = (), False, True
        try:
            item = running.run.send(logits)  # type: ignore[arg-type]
            while not isinstance(item, (PromptPieceRead, StepWanted)):
                running.task.event(item)
                item = next(running.run)
        except StopIteration:
            self._end(running, None)
        except H2OError as error:
            self._end(running, error)
        else:
            if isinstance(item, PromptPieceRead):
                running.reading = True
            else:
                running.wanted = item.tokens

    def _end(self, running: _Running, error: H2OError | None) -> None:
        running.run.close()
        if error is not None and not isinstance(error, ConfigError):
            running.generator.reset()
        self._running.remove(running)
        self._free.append(running.slot)
        running.task.ended(error)

    def _slot_for(self, request: Request) -> int:
        """The requested slot if it is free, else the slot whose conversation continues, else the least recently
        used one. For an embedding: the free slot with the fewest cached tokens."""
        if request.slot is not None and request.slot in self._free:
            return request.slot
        if request.pooling is not None:  # the slot is empty afterwards
            return min(self._free, key=lambda slot: self._model.slots[slot].length)

        def spared(slot: int) -> int:
            """Shared tokens, if they are most of what the slot holds."""
            generator = self._model.slots[slot]
            reused = generator.keeps(request.prompt.ids, request.prefill)
            return reused if 2 * reused > generator.length else 0

        if len(self._free) == 1 or not request.reuse:
            return self._free[0]
        try:
            return max(self._free, key=spared)
        except H2OError:  # the prompt is refused once it runs
            return self._free[0]
