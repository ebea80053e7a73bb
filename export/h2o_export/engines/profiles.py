"""Optimization profiles: for which sizes each graph's engine is tuned, and which it takes at all.

A graph that serves prefill and decode alike has one profile for each, in one engine and over one set of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from h2o_runtime.activations import logits_rows
from h2o_runtime.config import PrefillConfig
from h2o_runtime.engines import Profile, TensorRange
from h2o_runtime.manifest import GraphSpec, ModelSpec, TensorSpec

Range = tuple[int, int, int]  # least, tuned for, most


@dataclass(frozen=True)
class Limits:
    """The largest sizes that engines are built for. Tokens, all of them."""

    context: int  # cache capacity
    batch: int  # B, at most the context
    chunk: int  # S, at most B
    memory: int  # M
    head_rows: int  # rows that the head runs on at once

    @classmethod
    def of(cls, model: ModelSpec, prefill: PrefillConfig, max_context: int) -> Limits:
        batch = min(prefill.batch_size, max_context)
        return cls(
            context=max_context,
            batch=batch,
            chunk=min(prefill.chunk_size, batch),
            memory=prefill.memory,
            head_rows=logits_rows(model, batch),
        )


def make_profiles(graph: GraphSpec, limits: Limits) -> tuple[Profile, ...]:
    """The profiles of one graph of a bundle. Raises KeyError for a free size that is not known here."""
    one, capacity = (1, 1, 1), (limits.context,) * 3
    if graph.name == "phase1":
        return (_profile("prefill", graph, {"n": _up_to(limits.batch)}),)
    if graph.name == "phase2":
        sizes = {"n": _up_to(limits.chunk), "cap": capacity, "Mp": _up_to(limits.memory)}
        start, stop = limits.context - limits.chunk, limits.context
        chunk_range = TensorRange(min=(0, 1), opt=(start, stop), max=(start, stop))
        return (_profile("prefill", graph, sizes, {"chunk_range": chunk_range}),)
    values = {"length": TensorRange(min=(1,), opt=(limits.context,), max=(limits.context,))}
    rows = limits.head_rows if any(tensor.name == "logits" for tensor in graph.outputs) else limits.batch
    return (
        _profile("decode", graph, {"n": one, "cap": capacity}, values),
        _profile("prefill", graph, {"n": _up_to(rows), "cap": capacity}, values),
    )


def _profile(
    name: str, graph: GraphSpec, sizes: Mapping[str, Range], values: Mapping[str, TensorRange] | None = None
) -> Profile:
    inputs = {tensor.name for tensor in graph.inputs}
    return Profile(
        name=name,  # type: ignore[arg-type]
        shapes={tensor.name: _shapes(tensor, sizes) for tensor in graph.inputs},
        values={name: numbers for name, numbers in (values or {}).items() if name in inputs},
    )


def _shapes(tensor: TensorSpec, sizes: Mapping[str, Range]) -> TensorRange:
    least, tuned, most = (
        tuple(size if isinstance(size, int) else sizes[size][end] for size in tensor.shape)
        for end in range(3)
    )
    return TensorRange(min=least, opt=tuned, max=most)


def _up_to(most: int) -> Range:
    return 1, most, most
