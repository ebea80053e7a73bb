"""The parts that routes work with: settings, inference thread, request handler, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from h2o_runtime.execution.footprint import footprint
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.process import resident_bytes
from h2o_runtime.text import Tokenizer
from h2o_runtime.text_model import TextModel
from h2o_server.about.metrics import Metrics, VllmNames
from h2o_server.answers.grammar import GrammarCompiler
from h2o_server.apis.shared.answers import Health
from h2o_server.http.problems import shutting_down, unavailable
from h2o_server.http.room import LISTS, Room
from h2o_server.request_builder import RequestBuilder
from h2o_server.request_handler import RequestHandler
from h2o_server.scheduling.inference import InferenceState, InferenceThread
from h2o_server.settings import ServerSettings


@dataclass
class Service:
    """One server's parts. Belongs to the event loop's thread.

    chosen: the policy of requests that name none; None: the model's
    """

    settings: ServerSettings
    chosen: PrefillPolicy[Any] | None
    inference: InferenceThread
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.handler = RequestHandler(
            self.inference, self.metrics, limits.queue, limits.queue_timeout or None
        )
        gauge = self.metrics.gauge
        gauge("h2o_slots", "Requests that can be served at once", lambda: self.handler.slots.count)
        gauge("h2o_busy", "Answers that are being made, each in a slot", lambda: self.handler.slots.busy)
        gauge("h2o_set_aside", "Of them those whose rows wait elsewhere", lambda: self.inference.set_aside)
        gauge("h2o_queue_length", "Requests that wait for a slot", lambda: self.handler.slots.waiting)
        gauge("h2o_cache_tokens", "Tokens in the cache", lambda: sum(self.inference.cached_tokens))
        self.metrics.by_slot("h2o_slot_busy", "1 while the slot serves a request", self._busy_slots)
        self.metrics.by_slot("h2o_slot_tokens", "Tokens in the slot's cache", self._slot_tokens)
        gauge("h2o_cache_capacity_tokens", "Tokens that fit", self._capacity)
        gauge("h2o_cache_bytes", "Memory that is reserved for keys and values", self._cache_bytes)
        self.metrics.gauges("h2o_cache_", "What the cache tells of itself", self._cache_report)
        gauge("h2o_forgotten_tokens", "Of h2o_cache_tokens those that were evicted", self._evicted)
        gauge(
            "h2o_waiting_conversations", "Conversations kept for their next turn", lambda: self._waiting()[0]
        )
        gauge("h2o_waiting_conversations_bytes", "Memory that they take", lambda: self._waiting()[1])
        gauge("h2o_filed_conversations", "Conversations in --cache-dir", lambda: self._filed()[0])
        gauge("h2o_filed_conversations_bytes", "Bytes that they take there", lambda: self._filed()[1])
        gauge("h2o_resident_memory_bytes", "Memory of the process", resident_bytes)
        gauge(
            "h2o_estimated_memory_bytes",
            "The program before it loads a model; weights, rows of all slots and scratch for whole contexts",
            self.estimated_bytes,
        )
        if self.settings.metrics_names == "vllm":
            self.metrics.registry.register(self._vllm_names())

    def _vllm_names(self) -> VllmNames:
        slots = self.handler.slots
        return VllmNames(
            self.settings.alias,
            self.metrics,
            running=lambda: slots.busy,
            waiting=lambda: slots.waiting,
            usage=lambda: self.used_tokens() / max(self._capacity(), 1),
        )

    def health(self) -> Health:
        """Raises Problem if a router should ask another server."""
        if self.draining and self.inference.state is not InferenceState.FAILED:
            raise shutting_down()
        self.handler.check_inference()
        silence, most = self.handler.silence, self.settings.limits.stall_timeout
        if silence > most:
            raise unavailable(
                f"a running request has made no progress for {silence:.0f} s, the limit is {most:g} s; "
                "restart the server",
                code="stalled",
            )
        return Health(status="ok")

    def used_tokens(self) -> int:
        """Cache rows of running requests; waiting sessions can make room."""
        cached = self.inference.cached_tokens
        return sum(cached[job.slot] for job in self.handler.running if job.slot is not None)

    def _busy_slots(self) -> list[float]:
        busy = {job.slot for job in self.handler.running}
        return [float(slot in busy) for slot in range(self.handler.slots.count)]

    def _slot_tokens(self) -> list[float]:
        return [float(tokens) for tokens in self.inference.cached_tokens]

    @property
    def model(self) -> TextModel:
        """The loaded model. Raises Problem while there is none."""
        self.handler.check_inference()
        return self.inference.model

    @property
    def prefill(self) -> PrefillPolicy[Any]:
        """The policy of requests that name none. Raises Problem while there is no model."""
        return self.chosen or self.model.generator.default_policy

    @cached_property
    def grammars(self) -> GrammarCompiler:
        generator = self.model.generator
        tokenizer = generator.bundle.held.path(Tokenizer.FILE)
        return GrammarCompiler(tokenizer, generator.model.vocab_size, self.model.end_ids)

    @property
    def room(self) -> Room:
        """For one request; unknown before the model is loaded."""
        return self._room if self.inference.ready else Room(self.settings.limits.body_bytes)

    def room_of(self, path: str) -> Room:
        """For one request to a path."""
        return self.room.for_list(self.settings.limits.body_bytes) if path in LISTS else self.room

    @cached_property
    def _room(self) -> Room:
        return Room.of(self.inference.model, self.settings.limits.body_bytes)

    @property
    def builder(self) -> RequestBuilder:
        return RequestBuilder(self.model, self.grammars, self.prefill)

    def _capacity(self) -> float:
        return sum(one.context for one in self.inference.model.slots) if self.inference.ready else 0

    def _cache_bytes(self) -> float:
        slots = self.inference.model.slots if self.inference.ready else ()
        return sum(one.session.store.nbytes for one in slots)

    def _cache_report(self) -> Mapping[str, float | None]:
        return self.inference.model.generator.session.store.report() if self.inference.ready else {}

    def _evicted(self) -> float:
        inference = self.inference
        forgets = inference.model.generator.spec.forgets if inference.ready else None
        return sum(map(forgets, inference.cached_tokens)) if forgets else 0

    def _waiting(self) -> tuple[float, float]:
        pool = self.inference.model.generator.pool if self.inference.ready else ()
        return len(pool), pool.nbytes if pool else 0

    def _filed(self) -> tuple[float, float]:
        folder = self.inference.model.generator.pool.folder if self.inference.ready else None
        return (len(folder.files()), folder.nbytes) if folder else (0, 0)

    def estimated_bytes(self) -> float:
        """With whole contexts in all slots; 0 while the model is loaded."""
        if not self.inference.ready:
            return 0
        generator = self.inference.model.generator
        model = footprint(
            generator.model,
            generator.context,
            self.prefill,
            generator.spec,
            generator.loaded.backend.most_rows,
            generator.slots,
            generator.loaded.backend.native_products,
            generator.loaded.backend.dense_precision,
        )
        return self.inference.program_bytes + model.total
