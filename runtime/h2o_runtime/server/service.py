"""What the routes work with: settings, engine, desk, metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from h2o_runtime.completion import TextModel
from h2o_runtime.config import PrefillConfig
from h2o_runtime.footprint import footprint
from h2o_runtime.grammar import GrammarCompiler
from h2o_runtime.process import resident_bytes
from h2o_runtime.server.answers import Desk
from h2o_runtime.server.engine import Engine
from h2o_runtime.server.metrics import Metrics
from h2o_runtime.server.requests import Asker
from h2o_runtime.server.settings import ServerSettings


@dataclass
class Service:
    """One server's parts. Belongs to the event loop's thread.

    prefill: the configuration that requests start from
    """

    settings: ServerSettings
    prefill: PrefillConfig
    engine: Engine
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.desk = Desk(self.engine, self.metrics, limits.queue, limits.queue_timeout)
        gauge = self.metrics.gauge
        gauge("h2o_busy", "1 while a request is being served", lambda: self.desk.slot.busy)
        gauge("h2o_queue_length", "Requests that wait for the slot", lambda: self.desk.slot.waiting)
        gauge("h2o_cache_tokens", "Tokens in the cache", lambda: self.engine.cached_tokens)
        gauge("h2o_cache_capacity_tokens", "Tokens that fit", self._capacity)
        gauge("h2o_resident_memory_bytes", "Memory of the process", resident_bytes)
        gauge("h2o_estimated_memory_bytes", "Weights, caches and scratch by their shapes", self._estimate)

    @property
    def model(self) -> TextModel:
        """The loaded model. Raises Problem as long as there is none."""
        self.desk.check_engine()
        return self.engine.model

    @cached_property
    def grammars(self) -> GrammarCompiler:
        generator = self.model.generator
        return GrammarCompiler(generator.bundle.folder, generator.model.vocab_size, self.model.end_ids)

    @property
    def asker(self) -> Asker:
        return Asker(self.model, self.grammars, self.prefill)

    def _capacity(self) -> float:
        return self.engine.model.generator.context if self.engine.ready else 0

    def _estimate(self) -> float:
        if not self.engine.ready:
            return 0
        generator = self.engine.model.generator
        return footprint(generator.model, generator.context, self.prefill).total
