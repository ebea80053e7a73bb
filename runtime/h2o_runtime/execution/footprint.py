"""Memory of a bundle at run time, computed from shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from h2o_runtime.caches import CACHES, Cache, Contiguous
from h2o_runtime.errors import ConfigError
from h2o_runtime.layers.activations import activation_bytes
from h2o_runtime.layers.live import kinds_of
from h2o_runtime.limits import MAX_SLOTS
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import DensePrecision
from h2o_runtime.policies.decode import FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.process import available_bytes
from h2o_runtime.sessions.layer_states import rows_ahead, session_bytes, shares_memory
from h2o_runtime.sessions.spec import SessionSpec

MOST_SESSIONS = 8  # that nobody has asked for
LEAST_SHARING = 4  # so many, where they share memory


@dataclass(frozen=True)
class Footprint:
    """Bytes by purpose, for a full context.

    weights      every parameter once; a tied embedding twice, as a table and as the head's packed matrix
    cache        keys and values of every layer
    activations  buffers between dense graphs and attention, those of layer kinds among them, and a few rows of
                 logits
    memory       what the policies remember, as scores and memory sets
    scratch      inside one dense graph, on as many rows as it is given at once: four times the MLP's intermediate
                 rows (gate, its sigmoid, their product, up) or what a mixture of experts keeps, the normalised rows
                 and the residual
    """

    weights: int
    cache: int
    activations: int
    memory: int
    scratch: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.memory + self.scratch


@dataclass(frozen=True)
class Slots:
    """Sessions that are live at once.

    spare_bytes  for rows of all but one, where they share memory
    """

    count: int
    spare_bytes: int


def footprint(
    model: ModelSpec,
    context: int,
    prefill: PrefillPolicy[Any],
    spec: SessionSpec | None = None,
    most_rows: int | None = None,
    slots: Slots | None = None,
    native_products: bool = False,
    dense_precision: DensePrecision | None = None,
) -> Footprint:
    """For `context` tokens, with dense graphs that take the batch size or `most_rows` rows at once; for one
    session, or those of `slots`. spec: how sessions are made, by default with the defaults of all options.
    native_products, dense_precision: as `Backend` has them.

    Python and the native libraries add about 65 MB before a model is loaded.
    """
    item = np.dtype(model.dtype).itemsize
    rows = min(prefill.batch_size, context, most_rows or context)
    policies = (prefill, spec.decoding if spec else FullDecode())
    cache = spec.cache if spec else Contiguous()
    kinds = (spec.layers.kinds if spec else kinds_of(model)).values()
    ahead = spec.rows_ahead if spec else rows_ahead("auto", native_products)
    slots = slots or Slots(1, 0)
    session = session_bytes(cache, model, context, ahead)
    states = sum(policy.state_bytes(model.under_policies, context) for policy in policies)
    return Footprint(
        weights=weight_bytes(model, dense_precision if native_products else None),
        cache=session + slots.spare_bytes if shares_memory(cache, model) else slots.count * session,
        activations=activation_bytes(model, context)
        + sum(kind.buffer_bytes(model, context, cache) for kind in kinds),
        memory=slots.count * states,
        scratch=rows * (_inside(model, native_products) + 2 * model.hidden_size) * item,
    )


def slots_of(spec: SessionSpec, wanted: int | None, most_bytes: int | None) -> Slots:
    """As many as are wanted; None is as many as `most_bytes` hold, up to MOST_SESSIONS, on a CPU and in a cache for
    several at once; else one.

    Where they share memory, each can have a whole context as long as others leave it room, and there are at least
    LEAST_SHARING unless fewer are wanted. most_bytes: for their rows; None is half of the free memory. Raises
    ConfigError for none at all, or too many, also for `most_bytes` or the free memory.
    """
    if wanted is not None and not 1 <= wanted <= MAX_SLOTS:
        raise ConfigError(f"slots must be from 1 to {MAX_SLOTS:,}, but is {wanted}", field="slots")
    if most_bytes is not None and most_bytes < 1:
        raise ConfigError(f"slot_bytes must be at least 1, but is {most_bytes}", field="slot_bytes")
    rows = session_bytes(spec.cache, spec.model, spec.context, spec.rows_ahead)
    free = available_bytes() if spec.device.memory == "cpu" else None
    least, shared = wanted or 1, shares_memory(spec.cache, spec.model)
    limit = most_bytes or (free if least > 1 else None)  # the rows of a single session come as it grows
    if limit and not shared and least * rows > limit:
        take = f"`slots={wanted}` take" if wanted else "one slot takes"
        what = "their memory is" if most_bytes else "the free memory is"
        remedy = "lower `slots` or `context`" if wanted else "give more, lower `context`"
        pages = ", or use `cache=paged`" if spec.model.with_rows is spec.model else ""
        raise ConfigError(
            f"{take} {least * rows >> 20:,} MiB for their rows, and {what} {limit >> 20:,} MiB: {remedy}{pages}",
            field="slots",
        )
    if most_bytes is None:
        most_bytes = free // 2 if free is not None else (wanted or 1) * rows
    if wanted is None and not (spec.cache.several_at_once and spec.device.memory == "cpu"):
        wanted = 1
    if wanted is None:
        policies = (spec.prefill, spec.decoding)
        states = sum(policy.state_bytes(spec.model.under_policies, spec.context) for policy in policies)
        least = LEAST_SHARING if shared else least
        wanted = max(least, min(MOST_SESSIONS, most_bytes // (rows + states)))
    if wanted == 1:
        return Slots(1, 0)
    return Slots(wanted, max(1, min((wanted - 1) * rows, most_bytes - rows)))


def _inside(model: ModelSpec, native_products: bool) -> int:
    """Elements per token inside an MLP, or a mixture of experts: the larger.

    Graphs of a mixture keep its experts' inputs and outputs, each in two orders. Our own products keep the outputs
    alone. The router, and what is unused of an arena, take about as much again.
    """
    experts = model.experts
    copies = 2 if native_products else 4
    return max(4 * model.intermediate_size, copies * experts.chosen * model.hidden_size if experts else 0)


def cache_bytes(model: ModelSpec, context: int) -> dict[str, int]:
    """Bytes of keys and values for `context` tokens, by cache and row format."""
    kinds = kinds_of(model).values()

    def fits(cache: type[Cache]) -> bool:
        refused = any(kind.cache_refusal(cache) for kind in kinds)
        lent = cache.lends_rows or not model.lends_rows
        return not refused and lent and (cache.mixed_rows or model.with_rows.one_row)

    return {
        f"{cache.name} {cache.stored_dtype(model)}": session_bytes(cache, model, context)
        for kind in CACHES
        if fits(kind)
        for cache in kind.variants(model.with_rows)
    }


def weight_bytes(model: ModelSpec, packed: DensePrecision | None = None) -> int:
    """Weights in memory while the model runs. packed: how our own products hold those that are floats, if they do.

    The dense form "exact" converts one matrix at a time to floats; that scratch is not counted.
    """
    item = np.dtype(model.dtype).itemsize
    stored, weights = model.weight_bytes, model.weights
    if model.tied:
        stored += weights.table_bytes if weights else model.vocab_size * model.hidden_size * item
    if packed and weights and not weights.quantized:
        item = 2 if packed == "bfloat16" else 4
        matrices = weights.projection_bytes + (weights.table_bytes if model.tied else weights.head_bytes)
        elements = weights.projection_elements + model.vocab_size * model.hidden_size
        stored += elements * item - matrices
    return stored
