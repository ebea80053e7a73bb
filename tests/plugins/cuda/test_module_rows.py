"""Steps of several rows by h2o_plugins._cuda under the emulation: against float64 NumPy, and bit for bit against
steps of one row."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.plugins.cuda.model import Array, Model, assert_close
from tests.reference import operators

from h2o_runtime.kv import KV
from h2o_runtime.kv_entry import kv_entries
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.operators import STEP_ATTENTION, STEP_ROWS_ATTENTION
from h2o_runtime.providers.host_operators import quantized

CAPACITY = 400
LENGTHS = [333, 1, 64, 65, 200]  # of sessions, before a step
SHAPES = {
    "float16": (4, 2, 64, np.float16),
    "float16, wide": (8, 2, 128, np.float16),
    "float32": (6, 2, 32, np.float32),
    "any size": (3, 1, 40, np.float32),
    "large group": (34, 2, 32, np.float16),
}
FORMATS = {"model": None, "int8": np.int8}


class Sessions:
    """Caches of several sequences on the device. Rows that a step has not appended are NaN."""

    def __init__(self, model: Model, lengths: Sequence[int], stored: Any = None) -> None:
        self.model, self.stored = model, stored
        self.lengths = list(lengths)
        self.k = [model.rows(CAPACITY, model.Hkv) for _ in lengths]
        self.v = [model.rows(CAPACITY, model.Hkv) for _ in lengths]
        self.reset()

    def reset(self) -> None:
        self.caches = [
            self._cache(k, v, length) for k, v, length in zip(self.k, self.v, self.lengths, strict=True)
        ]

    def _cache(self, k: Array, v: Array, length: int) -> KV:
        put = self.model.put
        if self.stored is None:
            unknown = np.arange(CAPACITY)[:, None, None] >= length
            k, v = (np.where(unknown, np.nan, rows).astype(rows.dtype) for rows in (k, v))
            return KV(put(k), put(v), 0)
        stored = [quantized(rows) for rows in (k, v)]
        for numbers, scales in stored:
            numbers[length:], scales[length:] = 77, np.nan
        (k_rows, k_scales), (v_rows, v_scales) = stored
        return KV(put(k_rows), put(v_rows), 0, scales=(put(k_scales), put(v_scales)))

    def rows(self, which: int) -> list[Array]:
        """What is stored of one sequence."""
        return [self.model.get(tensor) for tensor in self.caches[which].tensors.values()]


class Row:
    """Of session `which`, `behind` rows after its first new one."""

    def __init__(self, sessions: Sessions, which: int, behind: int = 0) -> None:
        self.which, self.length = which, sessions.lengths[which] + behind + 1
        self.q = sessions.model.rows(1, sessions.model.Hq)
        self.k, self.v = (rows[which][self.length - 1 : self.length] for rows in (sessions.k, sessions.v))


def step(sessions: Sessions, rows: Sequence[Row | None], sinks: Array | None = None) -> Array:
    """Outputs of a step of these rows; None is padding."""
    model, given = sessions.model, next(row for row in rows if row is not None)
    n = len(rows)
    tensors = {
        name: model.put(np.concatenate([getattr(row or given, name) for row in rows]))
        for name in ("q", "k", "v")
    }
    entries = np.zeros((n, 8), np.int64)
    for entry, row in zip(entries, rows, strict=True):
        if row is not None:
            entry[:] = kv_entries([sessions.caches[row.which]])[0].view(np.int64)
    o = model.put_empty(n, model.Hq, model.d, dtype=model.dtype)
    alike = sessions.caches[given.which]
    more = {} if sinks is None else {"sinks": model.put(sinks)}
    model.run(
        STEP_ROWS_ATTENTION,
        model.cuda.KV(alike.k, alike.v, 0, scales=alike.scales),
        **tensors,
        lengths=model.put(np.array([row.length if row else 0 for row in rows], np.int64)),
        caches=model.put(entries),
        o=o,
        **more,
    )
    return model.get(o)


def one(sessions: Sessions, row: Row, sinks: Array | None = None) -> Array:
    """The output of a row in a StepAttention of its own."""
    model, cache = sessions.model, sessions.caches[row.which]
    o = model.put_empty(1, model.Hq, model.d, dtype=model.dtype)
    kv = model.cuda.KV(cache.k, cache.v, row.length, scales=cache.scales)
    more = {} if sinks is None else {"sinks": model.put(sinks)}
    model.run(STEP_ATTENTION, kv, q=model.put(row.q), k=model.put(row.k), v=model.put(row.v), o=o, **more)
    return model.get(o)[0]


def sinks_of(model: Model) -> Array:
    return model.random.normal(0, 3, model.Hq).astype(np.float32)


def mixed(sessions: Sessions) -> list[Row]:
    """Rows of every session, three of one of them."""
    return [
        Row(sessions, 1),
        *(Row(sessions, 0, behind) for behind in range(3)),
        *(Row(sessions, which) for which in (2, 3, 4)),
    ]


def same_bits(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    np.testing.assert_array_equal(ours.view(f"u{ours.itemsize}"), theirs.view(f"u{theirs.itemsize}"))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_any_sequences_against_float64(emulated_cuda: ModuleType, shape: Any) -> None:
    model = Model(emulated_cuda, *shape)
    sessions = Sessions(model, LENGTHS)
    rows = mixed(sessions)
    for row, o in zip(rows, step(sessions, rows), strict=True):
        k, v = sessions.k[row.which], sessions.v[row.which]
        expected = operators.cached_attention(row.q, k, v, row.length, scale=model.scale)
        assert_close(o[None], expected, half=model.half)
    for which, length in enumerate(LENGTHS):
        new = 3 if which == 0 else 1
        for got, source in zip(sessions.rows(which), (sessions.k[which], sessions.v[which]), strict=True):
            same_bits(got[: length + new], source[: length + new])
            assert np.isnan(got[length + new :]).all()


@pytest.mark.parametrize(
    ("shape", "stored", "window", "softcap"),
    [
        ("float16, wide", "int8", 0, 0.0),
        ("float32", "int8", 0, 0.0),
        ("large group", "model", 0, 0.0),
        *(
            pytest.param(shape, stored, 0, 0.0, marks=pytest.mark.nightly)
            for shape in SHAPES
            for stored in FORMATS
        ),
        ("float16", "int8", 30, 4.0),
        ("any size", "model", 30, 4.0),
    ],
)
def test_a_row_has_the_same_bits_alone_and_beside_others_in_any_place(
    emulated_cuda: ModuleType, shape: str, stored: str, window: int, softcap: float
) -> None:
    model = Model(emulated_cuda, *SHAPES[shape], window=window, softcap=softcap)
    sessions, sinks = Sessions(model, LENGTHS, FORMATS[stored]), None if window else sinks_of(model)
    rows = mixed(sessions)
    alone = [one(sessions, row, sinks) for row in rows]
    kept = [sessions.rows(which) for which in range(len(LENGTHS))]
    sessions.reset()
    for row, expected in zip(rows, alone, strict=True):
        same_bits(step(sessions, [row], sinks)[0], expected)
    for order in ([0, 1, 2, 3, 4, 5, 6, None], [6, None, 5, 1, 2, 3, 4, 0], [4, 0, 1, 2, 3]):
        sessions.reset()
        got = step(sessions, [None if i is None else rows[i] for i in order], sinks)
        for i, o in zip(order, got, strict=True):
            if i is not None:
                same_bits(o, alone[i])
            else:
                # Where another launch combines parts, it puts something there.
                assert np.isnan(o).all() or model.Hq // model.Hkv > 16 or not model.half
        if len(order) < 8:
            continue
        for which, stores in enumerate(kept):
            for ours, theirs in zip(sessions.rows(which), stores, strict=True):
                same_bits(ours, theirs)


def test_the_most_rows(emulated_cuda: ModuleType) -> None:
    """Of sixteen sequences, whose lengths a recording would find on the device."""
    model = Model(emulated_cuda, *SHAPES["float16"])
    sessions = Sessions(model, range(3, 3 + 20 * MOST_STEP_ROWS, 20))
    rows = [Row(sessions, which) for which in range(MOST_STEP_ROWS)]
    together = step(sessions, rows)
    sessions.reset()
    for row, o in zip(rows, together, strict=True):
        same_bits(o, one(sessions, row))


def test_what_is_refused(emulated_cuda: ModuleType) -> None:
    model = Model(emulated_cuda, *SHAPES["float16"])
    sessions = Sessions(model, [5])
    row = Row(sessions, 0)
    with pytest.raises(ValueError, match="step_rows_attention: an argument is out of range"):
        step(sessions, [row, *[None] * MOST_STEP_ROWS])
    latent = sessions.caches[0].k
    o, number = model.put_empty(1, model.Hq, model.d, dtype=model.dtype), model.put(np.ones(1, np.int64))
    with pytest.raises(ValueError, match="step_rows_attention: no kernel"):
        model.run(
            STEP_ROWS_ATTENTION,
            model.cuda.KV(latent, latent, 0),
            q=model.put(row.q),
            k=model.put(row.k),
            v=model.put(row.v),
            lengths=number,
            caches=model.put(np.zeros((1, 8), np.int64)),
            o=o,
        )
