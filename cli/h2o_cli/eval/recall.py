"""Recall of attention mass: how much of full attention's mass a rule's lists contain.

Lists are computed beside full attention: every rule sees the queries and keys of the exact run, so that rules
differ only in their choice. Attention mass is the probability that queries give to keys of the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.attention import AttentionProvider, PartialSoftmax
from h2o_runtime.attention.provider import each_tile
from h2o_runtime.devices import Device
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION, MEMORY_FUSED_ATTENTION, TILED_MEMORY_ATTENTION
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy, PromptCall
from h2o_runtime.schedule import Span

Array = NDArray[Any]
Float64 = NDArray[np.float64]
BLOCK = 128  # queries whose sums are cached: larger lists add these sums


def past_mass(q: Array, k: Array, first: int, past: int, scale: float) -> Array:
    """Summed probabilities that full causal attention of some queries gives to each key of the past.

    q [r, Hq, d] is at first … first + r - 1; k [total, Hkv, d] are the keys from position 0 on; the first
    `past` (at most `first`) are counted. Returns [Hq, past] in the dtype of q; no sum exceeds r.
    """
    rows, heads, _ = q.shape
    group = heads // k.shape[1]
    visible = np.tril(np.ones((rows, rows), bool))  # of the queries' own keys
    mass = np.empty((heads, past), q.dtype)
    for head in range(heads):
        logits = q[:, head] @ k[: first + rows, head // group].T  # [r, first + r]
        logits *= scale
        logits[:, first:][~visible] = -np.inf
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        share = 1.0 / logits.sum(axis=1)
        mass[head] = share @ logits[:, :past]
    return mass


def by_list(mass: Array, lists: int) -> Array:
    """Mass [Hq, past] summed over the query heads that share a list: [lists, past]."""
    return np.asarray(mass.reshape(lists, -1, mass.shape[1]).sum(axis=1))


def selected_mass(mass: Array, keys: Array) -> Array:
    """The mass [Hs, past] of the keys in lists, int [Hs, M] → [Hs]. Keys at `past` or later count as zero."""
    return np.array(
        [row[np.unique(listed[listed < len(row)])].sum() for row, listed in zip(mass, keys, strict=True)],
        mass.dtype,
    )


def best_mass(mass: Array, count: int) -> Array:
    """The largest mass [Hs, past] of any `count` keys → [Hs]."""
    past = mass.shape[1]
    if count >= past:
        return np.asarray(mass.sum(axis=1))
    return np.asarray(np.partition(mass, past - count, axis=1)[:, past - count :].sum(axis=1))


class LayerMass:
    """One layer's queries and keys of a whole prompt; shared sums are computed once.

    q [n, Hq, d], k [n, Hkv, d], both from position 0 on.
    """

    def __init__(self, q: Array, k: Array, scale: float) -> None:
        self._q, self._k, self._scale = q, k, scale
        self._blocks: dict[Span, Array] = {}

    def of(self, rows: Span, past: int) -> Array:
        """As `past_mass` of these queries: [Hq, past]."""
        total = np.zeros((self._q.shape[1], past), self._q.dtype)
        start = rows.start
        while start < rows.stop:
            block = Span(start, min(start // BLOCK * BLOCK + BLOCK, rows.stop))
            total += self._block(block)[:, :past]
            start = block.stop
        return total

    def _block(self, rows: Span) -> Array:
        if rows not in self._blocks:
            q = self._q[rows.start : rows.stop]
            self._blocks[rows] = past_mass(q, self._k, rows.start, rows.start, self._scale)
        return self._blocks[rows]


@dataclass(frozen=True)
class KeyList:
    """Keys that some queries of one layer see beyond their own chunk.

    rows  where the queries stand
    past  where their chunk begins: keys before it are the past
    keys  int32 [Hs, M], a list a score head
    """

    rows: Span
    past: int
    keys: NDArray[np.int32]


class ListWatch:
    """An attention provider that records the lists of calls that it passes on: which keys of the past a policy
    shows to which queries.

    It needs host memory, where queries are rows of the layer's own, identified by address.
    """

    def __init__(self, provider: AttentionProvider, q: Array) -> None:
        """q [n, Hq, d]: the layer's; all calls use its rows."""
        self._provider, self._q = provider, q
        self._chunks: list[tuple[Span, int]] = []  # rows of a call of Phase 1, and its chunk size
        self._seen: dict[Span, NDArray[np.int32]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        if operator is TILED_MEMORY_ATTENTION:
            state = PartialSoftmax(*(arguments[f"{name}_intra"] for name in "oml"))
            assert kv is not None
            each_tile(self, arguments["q"], kv, arguments["memory"], arguments["tile"], state)
            return
        rows = self._rows(arguments["q"]) if "q" in arguments else None
        if operator is CHUNKED_INTRA_ATTENTION:
            assert rows is not None, "Phase 1 is of the layer's rows"
            self._chunks.append((rows, arguments["chunk_size"]))
        elif operator is MEMORY_FUSED_ATTENTION and rows is not None:
            # Rows may see a second list, which continues the first.
            before = self._seen.get(rows, arguments["memory"][:, :0])
            self._seen[rows] = np.concatenate([before, arguments["memory"]], axis=1)
        self._provider.run(operator, kv, **arguments)

    def lists(self) -> list[KeyList]:
        """One list for all rows of a call for keys of the past."""
        return [KeyList(rows, self._chunk_start(rows.start), keys) for rows, keys in self._seen.items()]

    def _rows(self, q: Array) -> Span | None:
        """None for copies of queries, whose attention is not output."""
        if not np.may_share_memory(q, self._q):
            return None
        start = (q.ctypes.data - self._q.ctypes.data) // self._q.strides[0]
        assert 0 <= start <= len(self._q) - len(q), "queries are rows of the layer's"
        return Span(start, start + len(q))

    def _chunk_start(self, row: int) -> int:
        for rows, size in self._chunks:
            if rows.start <= row < rows.stop:
                return rows.start + (row - rows.start) // size * size
        return row


@dataclass(frozen=True)
class Recall:
    """Of one rule, summed over a prompt's lists; each [layers, Hq].

    selected  probability that lists contain, as full attention gives it
    best  that the best lists contain of as many keys, shared by the same queries and heads
    past  that all keys of the past have
    """

    selected: Float64
    best: Float64
    past: Float64

    @property
    def of_best(self) -> Float64:
        """By layer and head, at most 1; heads that never look back are left out."""
        return self.selected[self.best > 0] / self.best[self.best > 0]

    @property
    def of_past(self) -> Float64:
        return self.selected[self.past > 0] / self.past[self.past > 0]


def measure_recall(generator: Generator, ids: Any, policies: Sequence[PrefillPolicy[Any]]) -> list[Recall]:
    """One prompt under full attention, with the lists that each configuration would choose."""
    watched = Watched(rules=tuple(policies), scale=generator.model.scale)
    generator.prefill(ids, watched, reuse=False)
    tallies: list[Tally] = generator.session.prefill_state
    found = [Recall(*tally.sums.copy()) for tally in tallies]
    generator.reset()
    generator.session.drop_state()  # the state of every rule is large
    return found


class Tally:
    """One rule's own state, and the mass of its lists so far: sums [3, layers, Hq], as `Recall` has them."""

    def __init__(self, rule: PrefillPolicy[Any], model: ModelSpec, capacity: int, device: Device) -> None:
        self.rule = rule
        self.state = rule.new_state(model, capacity, device)
        self.o = np.empty((capacity, model.query_heads, model.head_size), model.dtype)
        self.sums = np.zeros((3, model.layers, model.query_heads))

    def attend(self, call: LayerCall, mass: LayerMass) -> None:
        """Let the rule attend, and record what it saw; its output is dropped."""
        watch = ListWatch(call.provider, call.q)
        call_of_rule = replace(call, provider=watch, o=self.o[: len(call.q)], timer=PrefillTimer(), needed=0)
        self.rule.attend(call_of_rule, self.state)
        for keys in watch.lists():
            self.sums[:, call.layer] += list_sums(mass, keys)


def list_sums(layer: LayerMass, list: KeyList) -> Float64:
    """Selected, best and past mass of one list, float64 [3, Hq]; heads that share it share its sums
    equally.
    """
    mass = layer.of(list.rows, list.past)
    lists = len(list.keys)
    shared = by_list(mass, lists)
    selected, best = selected_mass(shared, list.keys), best_mass(shared, list.keys.shape[1])
    found = np.stack([selected, best, shared.sum(axis=1)]).astype(np.float64)  # [3, Hs]
    group = len(mass) // lists
    return np.repeat(found / group, group, axis=1)


@dataclass(frozen=True)
class Watched(PrefillPolicy[list[Tally]]):
    """Full attention, beside which other policies choose their lists. In host memory only."""

    name: ClassVar[str] = "watched"
    title: ClassVar[str] = "full attention, beside which rules are measured"
    exact: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = ("phase1",)

    rules: tuple[PrefillPolicy[Any], ...] = ()
    scale: float = 1.0  # of the model's dot products

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> list[Tally]:
        return [Tally(rule, model, capacity, device) for rule in self.rules]

    def start_prompt(self, prompt: PromptCall, state: list[Tally]) -> None:
        for tally in state:
            tally.rule.start_prompt(prompt, tally.state)

    def attend(self, call: LayerCall, state: list[Tally]) -> None:
        n, mass = len(call.q), LayerMass(call.q, call.k, self.scale)
        for tally in state:
            tally.attend(call, mass)
            call.checkpoint(0)
        call.dense_rows(0, n)
        call.checkpoint(n)

    def visible_pairs(self, n: int) -> int:
        return n * (n + 1) // 2
