"""Random mixes of requests before a scheduler: arrivals, lengths, policies, shared prompts, clients that leave."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.server.scheduled import CONFIGS, PIECE, Task, answer, finish, request, tokens_of, turn

from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.scheduler import Scheduler

ROUNDS = 8  # in which clients arrive
COMING, LEAVING = 0.7, 0.05  # shares


@dataclass(frozen=True)
class Lengths:
    """prompts: tokens of prompts, of which each request has one. most: tokens of an answer."""

    prompts: tuple[int, ...]
    most: int


def run_mix(model: TextModel, seed: int, lengths: Lengths) -> list[Task]:
    """One mix, to its end → its tasks. Slots hold what earlier mixes left there."""
    draw = random.Random(seed)
    scheduler, pool = Scheduler(model, PIECE), model.generator.pool
    tasks: list[Task] = []
    while len(tasks) < ROUNDS:
        while sum(1 for _ in scheduler.tasks) < len(model.slots) and draw.random() < COMING:
            tasks.append(_arrival(draw, lengths, tasks))
            scheduler.start(tasks[-1])
        for _ in range(draw.randrange(1, 12)):
            turn(scheduler)
        for task in tasks:
            task.left |= not task.over and draw.random() < LEAVING
    finish(scheduler)
    for prompt in {id(task.shared): task.shared for task in tasks if task.shared}.values():
        pool.drop(prompt)
    return tasks


def _arrival(draw: random.Random, lengths: Lengths, before: list[Task]) -> Task:
    """A new request, or now and then another answer to a prompt that has been asked for."""
    tokens, slot = draw.randrange(1, lengths.most + 1), draw.choice([None, None, 0, 2])
    last = before[-1] if before else None
    if last is not None and last.shared is not None and draw.random() < 0.5:
        return Task(replace(last.request, max_tokens=tokens, slot=slot), shared=last.shared)
    shape = (draw.randrange(3), draw.choice(lengths.prompts), tokens)
    wanted = request(*shape, draw.choice(CONFIGS), reuse=draw.random() < 0.5, slot=slot)
    # None is the beginning of another: that would be a conversation's next turn, whose answer depends on the turn.
    wanted = replace(wanted, prompt=Prompt((*wanted.prompt.ids[:-1], len(wanted.prompt.ids))))
    return Task(wanted, shared=SharedPrompt() if draw.random() < 0.3 else None)


@dataclass
class Isolated:
    """Greedy answers of one generator that knows of nothing else; of each prompt the longest so far."""

    model: TextModel
    known: dict[tuple[Prompt, PrefillPolicy[Any] | None], list[int]] = field(default_factory=dict)

    def check(self, task: Task) -> None:
        """The task's answer is that of an isolated run, up to where its client left."""
        wanted, completion = task.request, task.completion
        assert task.over
        assert task.error is None
        assert completion is not None
        assert task.left or completion.finish_reason != "cancelled"
        room = self.model.generator.context + 1 - len(wanted.prompt.ids)
        whole = min(wanted.max_tokens or 0, room)
        found = tokens_of(completion)
        assert found == self._answer(wanted, whole)[: len(found)]
        assert completion.finish_reason == "cancelled" or len(found) == whole

    def _answer(self, wanted: Request, tokens: int) -> list[int]:
        key = (wanted.prompt, wanted.prefill)
        if len(self.known.get(key, ())) < tokens:
            self.known[key] = answer(self.model, wanted)
        return self.known[key]
