"""The public face of the runtime: load a bundle, prefill a prompt, decode, generate."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.activations import Activations
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.attention.select import make_provider
from h2o_runtime.backends import Backend
from h2o_runtime.backends.select import make_backend
from h2o_runtime.bundle import Bundle
from h2o_runtime.cache import IntArray, KVCache
from h2o_runtime.config import PrefillConfig
from h2o_runtime.constraint import Constraint
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.devices.select import make_device
from h2o_runtime.errors import Cancelled, ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.events import Finished, GenerationEvent, Prefilled, TokenGenerated
from h2o_runtime.forward import Forward, Watch
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.policies import make_policy
from h2o_runtime.policies.memory import MemoryStore
from h2o_runtime.reuse import Prefix, Provenance, Reuse, plan_reuse, same_arithmetic
from h2o_runtime.sampling import Sampler, Sampling
from h2o_runtime.schedule import Span, spans
from h2o_runtime.timings import PrefillTimer

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


class Generator:
    """One model, one cache, one request at a time. Not thread-safe.

    Create it with `Generator.load`; it can be used as a context manager.
    """

    def __init__(
        self, bundle: Bundle, backend: Backend, provider: AttentionProvider, context: int, device: Device
    ) -> None:
        self.bundle = bundle
        self.model = bundle.manifest.model
        self.context = context
        self.backend = backend
        self.provider = provider
        self.device = device
        self._cache = KVCache(self.model, context, device)
        self._forward = _forward_on(device)(
            bundle.manifest, backend, provider, self._cache, Activations(self.model, context, device), device
        )
        self._origin = Provenance()
        self._state: Any = None
        self._state_config: PrefillConfig | None = None
        self._logits: Float32 | None = None  # after the cache's last token
        self._token: IntArray = np.zeros(1, np.int64)
        self.reused = 0  # tokens that the last prefill found in the cache

    @classmethod
    def load(
        cls,
        path: str | Path,
        backend: Literal["onnxruntime", "tensorrt", "tensorrt-rtx"] = "onnxruntime",
        context: int | None = None,
        attention: Literal["auto", "native", "functions"] = "auto",
        threads: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
    ) -> Generator:
        """Open a bundle and make it ready to run.

        `context` is the most tokens that prompt and answer can have together; by default what the model was
        trained for, at most 8192. `attention` chooses who executes the attention operators; "auto" takes the
        native kernels where they are built. `device` "auto" takes a GPU where the backend can use it. Raises
        BundleError, BackendError or ConfigError.
        """
        opened = Bundle.open(path)
        model = opened.manifest.model
        context = min(model.max_position_embeddings, DEFAULT_CONTEXT) if context is None else context
        if not 1 <= context <= MAX_CONTEXT:
            raise ConfigError(
                f"context must be from 1 to {MAX_CONTEXT:,} tokens, but is {context}", field="context"
            )
        if threads is not None and threads < 1:
            raise ConfigError(f"threads must be at least 1, but is {threads}", field="threads")
        if context > model.max_position_embeddings:
            log.warning(
                "context %d is beyond the %d positions that the model was trained for; expect worse answers there",
                context,
                model.max_position_embeddings,
            )
        place = make_device(device, backend)
        engine = make_backend(backend, opened, place, threads, context)
        provider = make_provider(attention, opened, place, threads)
        engine.activate()
        provider.activate(
            AttentionShape(
                query_heads=model.query_heads,
                kv_heads=model.kv_heads,
                head_size=model.head_size,
                scale=model.scale,
                dtype=np.dtype(model.dtype),
            )
        )
        generator = cls(opened, engine, provider, context, place)
        generator._forward.warm_up(opened.manifest.prefill.batch_size)
        return generator

    def close(self) -> None:
        """Give back sessions and memory; the generator is of no use afterwards."""
        self.device.synchronize()
        self.backend.deactivate()
        self.provider.deactivate()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The three calls of design: prefill, decode, logprobs

    def prefill(
        self, ids: ArrayLike, config: PrefillConfig | None = None, watch: Watch | None = None
    ) -> Float32:
        """Run a whole prompt, keeping what the cache holds of it → logits after its last token.

        The logits are float32 [vocab] and read-only.
        `ids` int [N], 1 ≤ N ≤ context. Raises ContextOverflowError, UnknownTokenError, InputError, Cancelled.
        """
        config, watch = config or self.bundle.manifest.prefill, watch or Watch()
        tokens = self._checked(ids)
        if self._answered(tokens, config):
            self.reused = len(tokens)
            self._forward.stopwatch = PrefillTimer()
            assert self._logits is not None
            return self._logits
        last = self._run(tokens, config, plan_reuse(self._cache, tokens, config, self._origin), watch)
        return self._keep(self._forward.logits(Span(last - 1, last))[0])

    def decode(self, token: int) -> Float32:
        """Append one token and attend to everything → logits float32 [vocab]."""
        if not 0 <= token < self.model.vocab_size:
            raise UnknownTokenError(int(token), self.model.vocab_size)
        if self._cache.length >= self.context:
            raise ContextOverflowError(self._cache.length + 1, self.context)
        if not self._cache.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        self._token[0] = token
        logits = self._forward.decode(self._token)
        self._cache.append(self._token, generated=True)
        return self._keep(logits)

    def logprobs(
        self, ids: ArrayLike, config: PrefillConfig | None = None, watch: Watch | None = None
    ) -> Float32:
        """log p(ids[t+1] | ids[:t+1]) under the policy, float32 [N - 1]. Starts from an empty cache."""
        config, watch = config or self.bundle.manifest.prefill, watch or Watch()
        tokens = self._checked(ids)
        self.reset()
        n = self._run(tokens, config, Reuse(Prefix.NONE, 0), watch)
        out: Float32 = np.empty(n - 1, np.float32)
        for rows in spans(n - 1, self._forward.head_rows):
            wide = self._forward.logits(rows).astype(np.float64)  # [rows, V]
            wide -= wide.max(axis=1, keepdims=True)
            chosen = wide[np.arange(len(rows)), tokens[rows.start + 1 : rows.stop + 1]]
            out[rows.start : rows.stop] = chosen - np.log(np.exp(wide).sum(axis=1))
        self._keep(self._forward.logits(Span(n - 1, n))[0])
        return out

    def generate(
        self,
        ids: Sequence[int] | IntArray,
        max_new_tokens: int = 64,
        config: PrefillConfig | None = None,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
        watch: Watch | None = None,
        constraint: Constraint | None = None,
    ) -> Iterator[GenerationEvent]:
        """Prefill, then sample: yields one Prefilled, a TokenGenerated a token and one Finished.

        Ends at a token of `stop_tokens` (not yielded, reason "stop"), after `max_new_tokens` or when the
        context is full (reason "length"). Raises Cancelled between two tokens when `watch` says so. `constraint`
        says which tokens may come; it must allow some of `stop_tokens` once the answer may end.
        """
        if max_new_tokens < 0:
            raise ConfigError(
                f"max_new_tokens must not be negative, but is {max_new_tokens}", field="max_new_tokens"
            )
        watch = watch or Watch()
        sampler = Sampler(sampling or Sampling(), self.model.vocab_size)
        tokens = self._checked(ids)
        logits = self.prefill(tokens, config, watch)
        yield Prefilled(
            prompt_tokens=len(tokens), reused_tokens=self.reused, timer=replace(self._forward.timer)
        )
        sampler.reset(tokens.tolist())
        stops = frozenset(stop_tokens)
        for produced in range(max_new_tokens):
            sampled = sampler.sample(logits, constraint.allowed() if constraint else None)
            if sampled.token in stops:
                yield Finished("stop", produced)
                return
            sampler.accept(sampled.token)
            if constraint:
                constraint.accept(sampled.token)
            yield TokenGenerated(sampled)
            if self._cache.length >= self.context or produced + 1 == max_new_tokens:
                break
            if watch.cancelled():
                raise Cancelled("generation was stopped")
            logits = self.decode(sampled.token)
        yield Finished("length", min(max_new_tokens, produced + 1) if max_new_tokens else 0)

    def memory_sets(self) -> list[Int32]:
        """Per layer int32 [Hs, M], the memory after the last full chunk; empty when no memory was needed."""
        if not isinstance(self._state, MemoryStore) or not self._state.has_last:
            return []
        return list(self.device.download(self._state.last).copy())

    def boundary_memory(self) -> NDArray[np.int32]:
        """Memory sets at every chunk boundary of a prompt run from an empty cache, [layers, boundaries, Hs, M].

        Boundary b lies after chunk b; only those that the last such prompt went past hold anything.
        """
        if not isinstance(self._state, MemoryStore):
            return np.zeros((self.model.layers, 0, 0, 0), np.int32)
        passed = max(self._origin.prompt - 1, 0) // self._state.chunk_size
        return np.stack([self.device.download(sets[:passed]).copy() for sets in self._state.sets])

    def reset(self) -> None:
        """Forget every token."""
        self._cache.truncate(0)
        self._origin = Provenance()
        self._logits = None
        if isinstance(self._state, MemoryStore):
            self._state.has_last = False

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._cache.length

    @property
    def timer(self) -> PrefillTimer:
        """Where the time of the last prefill went."""
        return self._forward.timer

    def _checked(self, ids: ArrayLike) -> IntArray:
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
            raise InputError(
                f"token ids must be a flat list of integers, but have shape {list(tokens.shape)}"
            )
        if not tokens.size:
            raise InputError("the prompt is empty: give at least one token")
        if len(tokens) > self.context:
            raise ContextOverflowError(len(tokens), self.context)
        unknown = np.flatnonzero((tokens < 0) | (tokens >= self.model.vocab_size))
        if len(unknown):
            position = int(unknown[0])
            raise UnknownTokenError(int(tokens[position]), self.model.vocab_size, position)
        return np.ascontiguousarray(tokens, np.int64)

    def _keep(self, logits: Float32) -> Float32:
        """A copy of the logits after the last token. Read-only: it answers too when the prompt comes again."""
        logits = logits.copy()
        logits.flags.writeable = False
        self._logits = logits
        return logits

    def _answered(self, tokens: IntArray, config: PrefillConfig) -> bool:
        """Whether the cache holds exactly this prompt, with its logits at hand."""
        return (
            self._logits is not None
            and same_arithmetic(self._origin.config, config)
            and len(tokens) == self._cache.length == self._cache.shared_prefix(tokens)
        )

    def _run(self, tokens: IntArray, config: PrefillConfig, reuse: Reuse, watch: Watch) -> int:
        """Bring the cache from `reuse.length` tokens to all of `tokens`; returns the number of new ones."""
        n = len(tokens) - reuse.length
        policy = make_policy(config)
        if self._state_config is None or not same_arithmetic(self._state_config, config):
            self._state = None  # before there is another: a small device has no room for two
            self._state, self._state_config = policy.new_state(self.model, self.context, self.device), config
        self.reused, self._logits = reuse.length, None
        before = self._origin
        self._cache.truncate(reuse.length)
        # Until all is done the cache is worth no more than what an interrupted run leaves behind.
        self._origin = Provenance()
        done = False
        try:
            self._forward.prefill(
                tokens[reuse.length :], reuse, policy, self._state, config.batch_size, _checkpoint(watch, n)
            )
            done = True
        finally:
            if not done:
                self._after_interruption(before, config, reuse, n)
        self._cache.append(tokens[reuse.length :], generated=False)
        keeps_origin = reuse.prefix is Prefix.HISTORY
        self._origin = before if keeps_origin else Provenance.fresh(config, len(tokens))
        watch.progress(n, n)
        return n

    def _after_interruption(self, before: Provenance, config: PrefillConfig, reuse: Reuse, n: int) -> None:
        """Keep what is still sound: exact rows, a boundary's memory sets, scores that no chunk has touched."""
        short_turn = reuse.prefix is Prefix.HISTORY and n <= config.chunk_size
        if reuse.prefix is Prefix.EXACT or short_turn:
            self._origin = before
        elif reuse.prefix is Prefix.BOUNDARY:
            self._origin = Provenance.interrupted(config, reuse.length)
        else:
            self.reset()


def _checkpoint(watch: Watch, n: int) -> Any:
    def check(share: float) -> None:
        if watch.cancelled():
            raise Cancelled("prefill was stopped")
        watch.progress(int(share * n), n)

    return check


def _forward_on(device: Device) -> type[Forward]:
    if isinstance(device, HostDevice):
        return Forward
    from h2o_runtime.recorded import RecordedForward

    return RecordedForward
