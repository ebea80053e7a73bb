"""Latent attention: one set of weights, two modes that compute the same numbers.

Absorbed: queries are mapped to the space of latents and attend to the cache directly. A pair of query and key
costs 2 (2r + dr) operations per head, and a key costs nothing. Expanded: keys and values of every head are
first computed from the latents. A pair costs 2 (dn + dr + dv), and every key, also of the past, 2r (dn + dv).
Decode is absorbed. A prompt uses the cheaper mode, unless an option sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches import Cache, Contiguous, LayerStore
from h2o_runtime.components.options import option
from h2o_runtime.devices import Flow, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import AttentionShape, LayerSpec
from h2o_runtime.layers.kind import LayerKind, LayerResources, LoadedLayers
from h2o_runtime.model_spec import LatentSpec, ModelSpec
from h2o_runtime.policies.decode import DecodePolicy, StepCall
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.schedule import Span, spans

LatentMode: TypeAlias = Literal["absorbed", "expanded"]

EXPANDED_AT_ONCE = 4096  # rows of the past


@dataclass(frozen=True)
class Latent(LayerKind):
    """The cache holds one latent per token, which contains the values."""

    name: ClassVar[str] = "latent"
    title: ClassVar[str] = "latent attention"

    latent: Literal["auto", "absorbed", "expanded"] = option(
        "auto",
        "How latent attention reads a prompt: on latents (absorbed), or on the keys and values of every head "
        "(expanded). auto takes the mode with fewer operations.",
    )

    def load(self, resources: LayerResources) -> LatentLayers:
        choice, model = self.latent, resources.model
        shape = expanded_shape(model)
        if choice == "expanded" and not can_expand_past(model, resources.cache):
            raise ConfigError(
                "`latent=expanded` needs latents as they were computed: use `cache=contiguous` and "
                "`rows=model`, or leave out `latent`",
                field="latent",
            )
        if not resources.provider.takes(shape):
            if choice == "expanded":
                raise ConfigError(
                    f"`latent=expanded` has heads of {shape.head_size} and {shape.value_size} elements, which no "
                    "kernel supports: add `attention=functions`, or leave out `latent`",
                    field="latent",
                )
            choice = "absorbed"
        expanded = None if choice == "absorbed" else resources.provide(shape)
        return LatentLayers(replace(self, latent=choice), resources, expanded)

    def buffer_bytes(self, model: ModelSpec, capacity: int, cache: Cache) -> int:
        spec = _layer(model)
        absorbed = self.absorbed_rows(model, capacity, cache) * (spec.head_size + spec.value_size)
        expanded = 0 if self.latent == "absorbed" else capacity * (spec.query_size + spec.out_size)
        return spec.query_heads * (absorbed + expanded) * np.dtype(model.dtype).itemsize

    def absorbed_rows(self, model: ModelSpec, capacity: int, cache: Cache) -> int:
        """Rows of the buffers for the absorbed mode: the most for which it may be chosen, and one for decode.

        Under full attention, expanding pays off sooner if more rows see the past: beyond this many rows,
        always.
        """
        if self.latent == "expanded":
            return 1
        sizes = _sizes(model)
        more = _more_a_pair(sizes)
        if self.latent == "absorbed" or not can_expand_past(model, cache) or more <= 0:
            return capacity
        return max(1, min(capacity, sizes.rank * (sizes.nope_size + sizes.value_size) // more))

    def cache_refusal(self, cache: Cache | type[Cache]) -> str | None:
        if cache.shared_values:
            return None
        return (
            f"the cache {cache.name} keeps keys and values, and a latent model has latents alone: use "
            "`cache=contiguous` or `cache=paged`"
        )

    def decode_refusal(self, decoding: DecodePolicy[Any]) -> str | None:
        if decoding.shared_values:
            return None
        return (
            f"`decode={decoding.name}` is not for latent attention, whose keys and values differ in size: use "
            "`decode=full`"
        )

    def prefill_refusal(self, policy: PrefillPolicy[Any]) -> str | None:
        if policy.value_sizes:
            return None
        return (
            f"`policy={policy.name}` is not for latent attention, whose keys and values differ in size: use "
            "`policy=h2o` or `policy=full`"
        )

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        sizes = _sizes(model)
        queries = spec.query_heads * spec.query_size
        hidden, rank = model.hidden_size, sizes.query_rank
        work = (hidden + queries) * rank if rank else hidden * queries
        expanded = sizes.rank * spec.query_heads * (sizes.nope_size + sizes.value_size)
        return work + hidden * spec.head_size + expanded

    def comparisons(self) -> tuple[LayerKind, ...]:
        return replace(self, latent="absorbed"), replace(self, latent="expanded")


class LatentLayers(LoadedLayers):
    """What a latent model's layers do between their dense graphs and attention; the mode of a prompt.

    `expanded` executes operators on expanded keys and values; None: prompts are read absorbed.
    """

    in_step_graph = False
    divisible = False  # each piece would expand the past again, and might choose another mode

    def __init__(self, kind: Latent, resources: LayerResources, expanded: AttentionProvider | None) -> None:
        super().__init__(resources)
        model, spec, device = resources.model, _layer(resources.model), resources.device
        self._model, self._sizes, self._backend = model, _sizes(model), resources.backend
        self._provider, self._choice = expanded, kind.latent
        self._can_expand_past = can_expand_past(model, resources.cache)
        rows, heads = kind.absorbed_rows(model, resources.capacity, resources.cache), spec.query_heads
        self.absorbed = device.empty((rows, heads, spec.head_size), model.dtype)
        self.context = device.empty((rows, heads, spec.value_size), model.dtype)
        self.mode: LatentMode = "absorbed" if rows == resources.capacity else "expanded"
        # For the current layer: all layers share them, see `after`.
        rows = 0 if kind.latent == "absorbed" else resources.capacity
        self.k = device.empty((rows, heads, spec.query_size), model.dtype)
        self.v = device.empty((rows, heads, spec.out_size), model.dtype)

    def settle(self, policy: PrefillPolicy[Any], past: int, n: int) -> None:
        able = _modes(policy)
        if past and not self._can_expand_past:
            able = tuple(mode for mode in able if mode == "absorbed")
        if self._choice != "auto":
            wanted: LatentMode = self._choice
        elif "expanded" not in able or (
            "absorbed" in able
            and n <= len(self.absorbed)
            and absorbed_cheaper(self._sizes, _pairs(policy, past, n), past)
        ):
            wanted = "absorbed"
        else:
            wanted = "expanded"
        if wanted not in able or (wanted == "absorbed" and n > len(self.absorbed)):
            fallback = "absorbed" if wanted == "expanded" or "expanded" not in able else "expanded"
            raise ConfigError(
                f"policy {policy.name} with these settings needs latent attention {fallback}: load the bundle with "
                f"`latent={fallback}`, or use another policy",
                field="policy",
            )
        self.mode = wanted

    def after(
        self, layer: int, rows: Span, past: int, cache: LayerStore, new: dict[str, Tensor], flow: Flow
    ) -> None:
        """Absorb the queries, or expand the latents [n, 1, r + dr].

        All layers share one buffer of expanded keys and values, and a layer's last attention still reads its
        first rows. So the first expansion of a layer waits for all attention of the previous layer. Its dense
        graph does not wait, so the two still overlap. A second buffer, a third of the cache's size, is not
        needed.
        """
        if self.mode == "absorbed":
            self._backend.infer(f"absorb_{layer:02d}", *self._absorption(layer, _cut(rows)))
            return
        if rows.start == 0:
            flow.join()
            for span in spans(past, min(self._backend.most_rows, EXPANDED_AT_ONCE)):
                self._expand(layer, cache.view(past).k[span.start : span.stop], span.start)
        self._expand(layer, new["k"], past + rows.start)

    def call(self, call: LayerCall) -> LayerCall:
        n, length = len(call.q), call.past + len(call.q)
        if self.mode == "absorbed":
            return replace(call, q=self.absorbed[:n], o=self.context[:n])
        new = slice(call.past, length)
        assert self._provider is not None
        kv = KV(self.k, self.v, length)
        return replace(call, k=self.k[new], v=self.v[new], kv=kv, provider=self._provider)

    def before(self, layer: int, rows: Span) -> None:
        if self.mode == "absorbed":
            self._backend.infer(f"contract_{layer:02d}", *self._contraction(layer, _cut(rows)))

    def step(self, layer: int) -> tuple[Tensor, Tensor]:
        """Decode is always absorbed."""
        return self.absorbed[:1], self.context[:1]

    def attend_rows(self, policy: DecodePolicy[Any], call: StepCall, state: Any) -> None:
        """A row at a time from queries to attention output, so that its bits are those of a step of its own."""
        first, layer = int(call.kv.length) - len(call.q) + 1, call.layer
        q, o = self.absorbed[:1], self.context[:1]
        for row in range(len(call.q)):
            cut = slice(row, row + 1)
            self._backend.infer(f"absorb_{layer:02d}", {"q": call.q[cut]}, {"absorbed": q})
            policy.attend(replace(call, q=q, o=o, kv=call.kv.upto(first + row)), state)
            self._backend.infer(f"contract_{layer:02d}", {"context": o}, {"attention": call.o[cut]})

    def bound_after(self, layer: int) -> tuple[Callable[[], None], ...]:
        return (self._backend.bound(f"absorb_{layer:02d}", *self._absorption(layer, slice(0, 1))),)

    def bound_before(self, layer: int) -> tuple[Callable[[], None], ...]:
        return (self._backend.bound(f"contract_{layer:02d}", *self._contraction(layer, slice(0, 1))),)

    def report(self) -> dict[str, Any]:
        return {"latent": self.mode}

    def _absorption(self, layer: int, rows: slice) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"q": self._buffers.q[layer][rows]}, {"absorbed": self.absorbed[rows]}

    def _contraction(self, layer: int, rows: slice) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"context": self.context[rows]}, {"attention": self._buffers.attention[layer][rows]}

    def _expand(self, layer: int, latents: Tensor, start: int) -> None:
        rows = slice(start, start + len(latents))
        self._backend.infer(
            f"expand_{layer:02d}", {"latents": latents}, {"k": self.k[rows], "v": self.v[rows]}
        )

    @property
    def nbytes(self) -> int:
        return sum(int(buffer.nbytes) for buffer in (self.absorbed, self.context, self.k, self.v))


def expanded_shape(model: ModelSpec) -> AttentionShape:
    """Attention to each head's own keys and values."""
    spec = _layer(model)
    heads = spec.query_heads
    return AttentionShape(
        heads, heads, spec.query_size, spec.scale, np.dtype(model.dtype), value_size=spec.out_size
    )


def can_expand_past(model: ModelSpec, cache: Cache) -> bool:
    """Whether a cache stores latents unchanged, row by row: otherwise past ones cannot be expanded."""
    return isinstance(cache, Contiguous) and cache.stored_dtype(model) == model.dtype


def absorbed_cheaper(sizes: LatentSpec, pairs: int, past: int) -> bool:
    """Whether a prompt costs fewer operations in the absorbed mode: `pairs` of query and key per head, after
    `past` latents.

    The work for the prompt's own rows is the same in both modes: absorbing and contracting costs as much as
    expanding.
    """
    key = sizes.rank * (sizes.nope_size + sizes.value_size)
    return pairs * _more_a_pair(sizes) < past * key


def _modes(policy: PrefillPolicy[Any]) -> tuple[LatentMode, ...]:
    """The modes that a policy's operators support. Expanded, every head has its own keys, and heads share a
    list.
    """
    if not policy.value_sizes:
        return ()
    return ("absorbed", "expanded") if policy.spanning_lists else ("absorbed",)


def _layer(model: ModelSpec) -> LayerSpec:
    """The layers of this kind, which are all alike."""
    return next(spec for spec in model.each_layer if spec.kind == Latent.name)


def _sizes(model: ModelSpec) -> LatentSpec:
    assert model.latent is not None, "a bundle with latent layers has their sizes"
    return model.latent


def _cut(rows: Span) -> slice:
    return slice(rows.start, rows.stop)


def _more_a_pair(sizes: LatentSpec) -> int:
    """Additional multiplications of a pair in the absorbed mode."""
    return (2 * sizes.rank + sizes.rope_size) - (sizes.nope_size + sizes.rope_size + sizes.value_size)


def _pairs(policy: PrefillPolicy[Any], past: int, n: int) -> int:
    """Pairs of query and key that a prompt of n tokens adds to those of its past."""
    return policy.visible_pairs(past + n) - (policy.visible_pairs(past) if past else 0)
