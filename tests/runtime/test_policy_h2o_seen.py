"""What tiles see of their attention, and the guard: against masks and softmaxes in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.reference import choices, operators

from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices import HostDevice
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import AttentionShape
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import LayerCall, PromptCall, Seen
from h2o_runtime.policies.prefill.h2o import Query
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.policies.prefill.h2o.seen import TIE, checked_rows
from h2o_runtime.providers.native import NativeCpuProvider
from h2o_runtime.schedule import Span

pytest.importorskip("h2o_plugins")
Array = NDArray[Any]
HEADS, KV_HEADS, D = 4, 2, 16


class Run:
    """One layer of random attention under a policy, of a model of `layers`."""

    def __init__(
        self, policy: Query, n: int, seed: int, past: int = 0, layer: int = 0, layers: int = 1
    ) -> None:
        draw = np.random.default_rng(seed)
        self.policy, self.n, self.past, total = policy, n, past, past + n
        self.q = (3 * draw.standard_normal((n, HEADS, D))).astype(np.float32)
        self.k, self.v = (draw.standard_normal((total, KV_HEADS, D)).astype(np.float32) for _ in range(2))
        self.o = np.zeros_like(self.q)
        model = ModelSpec(
            family="llama",
            hidden_size=HEADS * D,
            layers=layers,
            query_heads=HEADS,
            kv_heads=KV_HEADS,
            head_size=D,
            intermediate_size=D,
            vocab_size=9,
            max_position_embeddings=total,
            parameters=1,
            tied=True,
            scale=D**-0.5,
            dtype="float32",
        )
        device, provider = HostDevice(), NativeCpuProvider(1)
        provider.activate(AttentionShape(HEADS, KV_HEADS, D, D**-0.5, np.dtype(np.float32)))
        self.state = policy.new_state(model, total, device)
        prefix = Prefix.HISTORY if past else Prefix.NONE
        policy.start_prompt(PromptCall(n, past, prefix, np.zeros(past, bool)), self.state)
        self.call = LayerCall(
            layer=layer,
            q=self.q,
            o=self.o,
            k=self.k[past:],
            v=self.v[past:],
            kv=KV(self.k, self.v, total),
            past=past,
            prefix=prefix,
            provider=provider,
            timer=PrefillTimer(policy.phases),
            flow=device.flow([Span(0, n)]),
            checkpoint=lambda done: None,
        )
        policy.attend(self.call, self.state)

    @property
    def seen(self) -> Seen | None:
        return self.policy.seen_share(self.state)

    def expected(self) -> tuple[Seen | None, Array]:
        """The same in float64, from the memory sets that were chosen: and the outputs [n, Hq, d]."""
        policy, n, past, group = self.policy, self.n, self.past, HEADS // KV_HEADS
        k, v = (each.astype(np.float64).repeat(group, axis=1) for each in (self.k, self.v))
        logits = np.einsum("ihd,jhd->hij", self.q.astype(np.float64), k) * D**-0.5  # [Hq, n, past + n]
        column, row = np.arange(past + n), past + np.arange(n)[:, None]
        causal = column <= row
        logits = np.where(causal, logits, -np.inf)
        p = np.exp(logits - logits.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        visible = np.broadcast_to(causal, p.shape).copy()
        tail = n
        if policy.dense_tail and (n > policy.chunk_size or past):  # from the tile of its first row on
            first = max(n - policy.dense_tail, 0)
            tail = max(tile.start for tile in policy.tiles(0, n) if tile.start <= first)
        saw, missed, widened = [], [], []
        for start in range(0, n, policy.chunk_size):
            chunk = Span(start, min(start + policy.chunk_size, n))
            before = past + start
            if before <= policy.memory_at(before):
                continue
            visible[:, chunk.start : chunk.stop, :before] = False
            tiles = [tile for tile in policy.tiles(chunk.start, chunk.stop) if tile.start < tail]
            if not tiles:
                continue
            where = policy.sets_of_tiles(policy.begun(self.call), past, tiles, chunk, self.state.heads)
            sets = self.state.sets(0, where)  # [t, Hs, M]
            for tile, own in zip(tiles, sets, strict=True):
                self.check_choice(tile, before, own)
                for head in range(HEADS):
                    visible[head, tile.start : tile.stop, own[head * len(own) // HEADS]] = True
            of_chunk = []
            for tile in tiles:
                rows = checked_rows(tile, policy.checks, (tile.start - start) // policy.tile_rows)
                saw.append(np.where(visible, p, 0)[:, rows].sum(axis=2).mean())
                top = p[:, rows].argmax(axis=2)[..., None]
                best = np.where(visible, logits, -np.inf)[:, rows].max(axis=2, keepdims=True)
                hidden = best < np.take_along_axis(logits[:, rows], top, axis=2) - TIE
                of_chunk.append((np.take_along_axis(p[:, rows], top, axis=2) * hidden).mean())
            missed += [np.mean(of_chunk)] * len(tiles)
            widened += [np.mean(of_chunk) > policy.missed] * len(tiles)
            if widened[-1]:
                visible[:, tiles[0].start : tiles[-1].stop] = causal[tiles[0].start : tiles[-1].stop]
        visible[:, tail:] = causal[tail:]
        weights = np.where(visible, p, 0)
        o = np.einsum("hij,jhd->ihd", weights / weights.sum(axis=2, keepdims=True), v)
        if not saw:
            return None, o
        return Seen(*map(float, (np.mean(saw), min(saw), np.mean(missed), max(missed), np.mean(widened)))), o

    def check_choice(self, tile: Span, before: int, sets: Array) -> None:
        """That a tile's votes choose its sets [Hs, M] from the `before` rows below its chunk, by the operators'
        references."""
        policy, q = self.policy, self.q[tile.start : tile.stop]
        stride, candidates = policy.stride_in(0, 1), np.zeros((1, min(KV_HEADS, len(sets)), 0), np.int32)
        past, first = np.array([before]), self.past + tile.start
        rule: dict[str, Any] = {"scale": D**-0.5, "stride": stride, "local": policy.local}
        if narrowed := policy.narrowed_to(before):
            candidates = choices.block_select(
                q, self.k, past, tile=len(q), block_size=BLOCK, heavy=narrowed - policy.local,
                score_heads=candidates.shape[1], **rule,
            )  # fmt: skip
        (expected,) = choices.query_select(
            q, self.k, candidates, past, np.array([first]), tile=len(q), reach=stride // 2,
            heavy=policy.memory_at(before) - policy.local, score_heads=len(sets), **rule,
        )  # fmt: skip
        lists = candidates[0].repeat(len(sets) // candidates.shape[1], axis=0)
        score = choices.query_score(
            q, self.k, lists, before, first, scale=D**-0.5, stride=stride, reach=stride // 2
        )
        assert operators.same_but_for_near_ties(
            expected, sets, score, stop=before, local=policy.local, rtol=1e-4
        )


@st.composite
def policies(draw: st.DrawFn) -> Query:
    chunk, local = draw(st.integers(12, 40)), draw(st.integers(1, 5))
    return Query(
        chunk_size=chunk,
        batch_size=chunk + draw(st.integers(0, 60)),
        local=local,
        heavy=draw(st.integers(1, 6)),
        tile=draw(st.integers(3, 20)),
        queries=draw(st.integers(1, 5)),
        candidates=draw(st.integers(8, 60)),
        grow=draw(st.sampled_from([0, 40, "never"])),
        heads=draw(st.sampled_from(["auto", "kv", "query"])),
        checks=draw(st.integers(1, 5)),
        missed=draw(st.sampled_from([0.0, 0.05, 0.1, 0.15, 1.0])),
        dense_tail=draw(st.sampled_from([0, 7, 30])),
    )


@settings(max_examples=12, deadline=None)
@given(
    policy=policies(), n=st.integers(1, 160), past=st.sampled_from([0, 0, 23, 50]), seed=st.integers(0, 99)
)
def test_what_is_told_and_what_is_widened(policy: Query, n: int, past: int, seed: int) -> None:
    run = Run(policy, n, seed, past)
    if past and n <= policy.chunk_size:  # a short turn sees everything
        assert run.seen is None
        return
    told, o = run.expected()
    if told is None or run.seen is None:
        assert run.seen is told
    else:
        for name, value in vars(told).items():
            assert getattr(run.seen, name) == pytest.approx(value, abs=2e-5), name
    np.testing.assert_allclose(run.o, o, atol=2e-5)


def test_the_guard_is_for_chunks_that_miss_more_than_others() -> None:
    policy = Query(chunk_size=32, batch_size=64, local=4, heavy=4, tile=8, dense_tail=0)
    free = Run(policy, 200, 1)
    assert free.seen is not None
    assert free.seen.widened == 0.0 < free.seen.missed < free.seen.most_missed < 1.0
    bound = (free.seen.missed + free.seen.most_missed) / 2
    guarded = Run(replace(policy, missed=bound), 200, 1)
    assert guarded.seen is not None
    assert 0.0 < guarded.seen.widened < 1.0
    assert guarded.seen.most_missed == free.seen.most_missed  # of before


@pytest.mark.parametrize(("rows", "count"), [(128, 2), (128, 4), (5, 9), (1, 1), (7, 2)])
def test_rows_that_are_checked_are_few_and_have_no_period(rows: int, count: int) -> None:
    found = np.concatenate([checked_rows(Span(i * rows, (i + 1) * rows), count, i) for i in range(8)])
    assert (np.diff(found) > 0).all()
    assert (np.bincount(found // rows, minlength=8) == min(count, rows)).all()
    for period in (2, 3, 4, 5) if rows == 128 else ():
        assert len(np.unique(found % period)) == period


def test_where_nothing_is_compared_nothing_is_told() -> None:
    assert Run(Query(chunk_size=32, local=4, heavy=4), 32, 0).seen is None
    assert Run(Query(chunk_size=32, local=4, heavy=4, checks=0), 100, 0).seen is None


def test_a_guard_needs_checks_and_the_cpu() -> None:
    with pytest.raises(ConfigError, match="raise checks, or leave out missed") as caught:
        Query(checks=0, missed=0.1)
    assert caught.value.field == "checks"
    with pytest.raises(ConfigError, match="must be at most 1, which is all attention"):
        Query(missed=2.0)
    assert Query().refusal("cuda") == Query(missed=0.1).refusal("cpu") == ""
    assert "works only on the CPU" in Query(missed=0.1).refusal("cuda")
