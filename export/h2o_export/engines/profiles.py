"""Optimization profiles: the sizes that each graph's engine accepts, and those it is tuned for.

A graph for both prefill and decode has one profile for each, in one engine with one set of weights. If the
decode profile allows a second row, TensorRT for RTX stores a layer's weights in one layout for both profiles.
If it allows exactly one row, TensorRT for RTX stores most weights twice (docs/weights.md). It allows as many rows
as a step may have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h2o_runtime.bundles.manifest import FreeSize, GraphSpec, TensorSpec
from h2o_runtime.engines import Profile, TensorRange
from h2o_runtime.layers.activations import logits_rows
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PrefillPolicy

Range = tuple[int, int, int]  # smallest, tuned for, largest


@dataclass(frozen=True)
class ProfileLimits:
    """The largest sizes that profiles allow. All in tokens."""

    context: int  # cache capacity
    batch: int  # B, at most the context
    head_rows: int  # rows on which the head runs at once

    @classmethod
    def of(cls, model: ModelSpec, prefill: PrefillPolicy[Any], max_context: int) -> ProfileLimits:
        batch = min(prefill.batch_size, max_context)
        return cls(
            context=max_context,
            batch=batch,
            head_rows=logits_rows(model, batch),
        )

    def limit(self, size: FreeSize) -> int:
        """The largest value that a free size is built for."""
        limits = {"rows": self.batch, "logits": self.head_rows, "cache": self.context, "slots": self.context}
        return min(given for given in (limits[size.counts], size.most) if given is not None)


def make_profiles(graph: GraphSpec, limits: ProfileLimits) -> tuple[Profile, ...]:
    """The profiles of one graph of a bundle. A cache always has all its rows, so its size is no range."""
    free = graph.free
    prefill: dict[str, Range] = {}
    for size in free.sizes:
        limit = limits.limit(size)
        prefill[size.name] = (limit if size.counts == "cache" else 1, limit, limit)
    rows = {size.name for size in free.sizes if size.counts in ("rows", "logits")}
    longest = max(prefill[name][-1] for name in rows)
    spans = {
        tensor.name: _span(tensor, longest, limits.context)
        for tensor in graph.inputs
        if tensor.name in free.spans
    }
    profiles = [_profile("prefill", graph, prefill, spans)]
    if free.step:
        widest = 1 if graph.kind == "attention" else MOST_STEP_ROWS  # tuned for one
        step = {name: (1, 1, min(widest, prefill[name][-1])) for name in rows}
        profiles.insert(0, _profile("decode", graph, prefill | step, spans))
    return tuple(profiles)


def _span(tensor: TensorSpec, rows: int, context: int) -> TensorRange:
    """The smallest and largest values of [start, stop) in the cache, or of its stop alone."""
    first: tuple[int, ...] = (0, 1)
    last: tuple[int, ...] = (context - rows, context)
    if not tensor.shape:
        first, last = first[1:], last[1:]
    return TensorRange(min=first, opt=last, max=last)


def _profile(
    name: str, graph: GraphSpec, sizes: Mapping[str, Range], spans: Mapping[str, TensorRange]
) -> Profile:
    return Profile(
        name=name,  # type: ignore[arg-type]
        shapes={tensor.name: _shapes(tensor, sizes) for tensor in graph.inputs},
        values=dict(spans),
    )


def _shapes(tensor: TensorSpec, sizes: Mapping[str, Range]) -> TensorRange:
    least, tuned, limit = (
        tuple(size if isinstance(size, int) else sizes[size][end] for size in tensor.shape)
        for end in range(3)
    )
    return TensorRange(min=least, opt=tuned, max=limit)
