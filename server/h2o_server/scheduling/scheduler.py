"""Several answers at once: each turn computes one step of all answers; after a few steps it also reads a piece.

So a stream waits for its next token no longer than a piece takes. `ReadingOrder` chooses the prompt that is
read. If slots share memory and it runs short, later runs wait (`block_room`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from h2o_runtime.answers.events import PromptPieceRead, StepWanted
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import ConfigError, H2OError
from h2o_runtime.execution.answer_steps import decode_together
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.block_room import BlockRoom
from h2o_server.scheduling.running import Running, Task

STEP_TOKENS = 256  # of a piece, for which all answers get one step: a step takes a small part of their time
SHARE = 4  # pieces, one of which goes to the prompt that came first


class ReadingOrder:
    """Whose prompt is read next: the one with the fewest tokens left, so that short prompts do not wait for long
    ones and equal prompts are read one after another. One piece in `SHARE` goes to the prompt that came first, so
    that none waits forever.
    """

    def __init__(self) -> None:
        self._overtaken = 0  # pieces read since the prompt that came first had one

    def next(self, readers: Sequence[Running]) -> Running | None:
        """The prompt whose piece is read now. readers: the one that came first, first."""
        if not readers:
            return None
        first = readers[0]
        turn = len(readers) == 1 or self._overtaken == SHARE - 1
        chosen = first if turn else min(readers, key=lambda reader: reader.left)
        self._overtaken = 0 if chosen is first else self._overtaken + 1
        return chosen


class Scheduler:
    """Belongs to the thread that runs the model. Unexpected errors leave it unchanged."""

    def __init__(self, model: TextModel, prompt_piece: int | None) -> None:
        """prompt_piece: the approximate number of prompt tokens read in one turn; None reads prompts at
        once.
        """
        self._model, self._prompt_piece = model, prompt_piece
        self._free = list(range(len(model.slots)))  # least recently used first
        self._running: list[Running] = []  # the one that came first, first
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
        self._running.append(Running(task, slot, generator, run))
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

    def _step(self, writing: list[Running]) -> None:
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

    def _go_on(self, running: Running, logits: object = None) -> None:
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

    def _end(self, running: Running, error: H2OError | None) -> None:
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
