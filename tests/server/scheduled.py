"""Requests to a scheduler that is driven by hand, and what their answers should be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import bundles
from tests.conftest import EXAMPLE
from tests.prefill import altered

from h2o_runtime import Generator, Sampling
from h2o_runtime.answers.completion import Completion
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.caches import Cache
from h2o_runtime.config.load_options import LoadOptions
from h2o_runtime.errors import BundleError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.policies.prefill import PrefillPolicy, Query
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text import Tokenizer
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.scheduler import Scheduler

CONFIG = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=10)
CONFIGS = (
    altered(CONFIG, tile=8),
    altered(CONFIG, score="colsum"),
    altered(CONFIG, policy="full"),
    altered(CONFIG, policy="minference", vertical=30, slash=50),
)
CONTEXT = 400
PIECE = 32
SLOTS = 4


@dataclass(eq=False)
class Task:
    """A request whose client may leave. read: whether its prompt is in the cache."""

    request: Request
    left: bool = False
    error: Exception | None = None
    over: bool = False
    slot: int | None = None
    completion: Completion | None = None
    read: bool = False
    shared: SharedPrompt | None = None

    @property
    def watch(self) -> Watch:
        return Watch(cancelled=lambda: self.left)

    def began(self, slot: int, generator: Generator) -> None:
        assert self.slot is None
        self.slot = slot

    def event(self, event: object) -> None:
        assert not self.over
        if isinstance(event, Prefilled):
            self.read = True
        elif isinstance(event, Completion):
            self.completion = event

    def ended(self, error: Exception | None) -> None:
        assert not self.over
        self.over, self.error = True, error


def load(bundle: Path, slots: int, cache: Cache, pool: int = 0, **more: Any) -> TextModel:
    more |= {"context": CONTEXT, "threads": 1, "device": "cpu"}
    options = LoadOptions(cache=cache, slots=slots, pool_bytes=pool, **more)
    return TextModel(
        Generator.open(bundle, options), Tokenizer.load(EXAMPLE), BundleError("no template here")
    )


def request(seed: int, length: int, tokens: int, config: PrefillPolicy[Any], **more: Any) -> Request:
    """Prompts of one seed begin alike. Greedy, unless `more` says otherwise."""
    more.setdefault("sampling", Sampling(temperature=0.0))
    ids = bundles.random_ids(CONTEXT, seed)[:length]
    return Request(Prompt(tuple(ids.tolist())), tokens, config, ignore_eos=True, **more)


def answer(model: TextModel, wanted: Request) -> list[int]:
    """As one generator gives it that knows of nothing else."""
    model.generator.reset()
    *_, completion = model.complete(wanted)
    assert isinstance(completion, Completion)
    return tokens_of(completion)


def tokens_of(completion: Completion | None) -> list[int]:
    assert completion is not None
    return [sampled.token for sampled in completion.tokens]


def turn(scheduler: Scheduler) -> None:
    """A turn. The rows of whoever came first stay in place, and each slot is free or runs one task."""
    first = scheduler._running[0] if scheduler._running else None
    scheduler.turn()
    assert first is None or not first.generator.session.store.moved
    slots = [*scheduler._free, *(one.slot for one in scheduler._running)]
    assert sorted(slots) == list(range(len(scheduler._model.slots)))


def finish(scheduler: Scheduler) -> int:
    """Run to the end → most runs that were set aside at a time."""
    most = 0
    for _ in range(5000):
        if scheduler.idle:
            return most
        turn(scheduler)
        most = max(most, scheduler.set_aside)
    raise AssertionError("it does not come to an end")


def pages_in_use(model: TextModel) -> int:
    """Of a cache on pages, once its slots and its pool are emptied."""
    pool = model.generator.pool
    for generator in model.slots:
        generator.reset()
    while len(pool):
        pool.give_up_session()
    used: int = model.generator.session.store.report().get("pages_in_use", 0)
    return used
