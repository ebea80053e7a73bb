"""Decode steps of several rows, each in a cache of its own, and attention sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench.gpu_check.layer import KV_HEADS, QUERY_HEADS, Layer
from bench.gpu_check.library import Library

MOST_ROWS = 16
COUNTS = (1, 2, 4, 8, 16)


class Step:
    """The last token of `MOST_ROWS` sequences: row i is the last of cache i, and all have `n` rows."""

    def __init__(self, library: Library, n: int, head_size: int) -> None:
        self.layers = [Layer(library, n, head_size) for _ in range(MOST_ROWS)]
        self.library, self.n, self.d, self.shape = library, n, head_size, self.layers[0].shape
        self.q, self.k, self.v = (
            torch.stack([getattr(layer, name)[-1] for layer in self.layers]) for name in ("q", "k", "v")
        )
        self.o = torch.zeros_like(self.q)
        entries = bytearray().join(bytes(layer.kv) for layer in self.layers)
        self.caches = torch.frombuffer(entries, dtype=torch.int64).view(MOST_ROWS, -1).to(self.q.device)
        self.lengths = torch.full((MOST_ROWS,), n, dtype=torch.int64)
        need = library.step_rows_attention_workspace(self.shape, n)
        self.workspace = torch.zeros(need, dtype=torch.uint8)
        self.arrivals = torch.zeros(MOST_ROWS * QUERY_HEADS, dtype=torch.int32)

    def run(self, first: int, count: int, sinks: Any = None) -> None:
        """Rows first … first + count - 1 in one step."""
        rows = slice(first, first + count)
        self.layers[0].run(
            self.library.step_rows_attention, self.shape, count, self.q[rows], self.k[rows], self.v[rows],
            self.layers[0].kv, self.lengths[rows], self.caches[rows], sinks, self.o[rows], self.arrivals,
            self.workspace, self.workspace.numel(),
        )  # fmt: skip

    def expected(self, row: int, sinks: Any = None) -> Any:
        """The output of one row in float32, [Hq, d]."""
        layer, group = self.layers[row], QUERY_HEADS // KV_HEADS
        q, k, v = self.q[row].float(), layer.k.float(), layer.v.float()
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("hd,nhd->hn", q, k) * self.d**-0.5
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None]), dim=1)
        return torch.einsum("hn,nhd->hd", scores.softmax(dim=1)[:, : self.n], v)

    def error(self, sinks: Any = None) -> float:
        """The largest error of the last row, of its largest number."""
        wanted = self.expected(MOST_ROWS - 1, sinks)
        return float((self.o[-1].float() - wanted).abs().max() / wanted.abs().max())


def rows(
    library: Library, n: int, head_size: int, milliseconds: Callable[[Callable[[], None]], float]
) -> Iterator[dict[str, Any]]:
    """Steps of 1 to 16 rows, beside as many steps of one row, with the same bits; then a step with sinks."""
    step = Step(library, n, head_size)

    def one_by_one(count: int) -> None:
        for row in range(count):
            step.run(row, 1)

    one_by_one(MOST_ROWS)
    alone = step.o.clone()
    for count in COUNTS:
        step.o.zero_()
        time = milliseconds(lambda: step.run(0, count))  # noqa: B023
        same = torch.equal(step.o[:count], alone[:count])
        yield {
            "head_size": head_size, "length": n, "rows": count, "ms": time,
            "one_by_one_ms": milliseconds(lambda: one_by_one(count)),  # noqa: B023
            "bytes": count * 2 * n * KV_HEADS * head_size * 2, "same_bits": same,
            "error": step.error() if count == MOST_ROWS else None,
        }  # fmt: skip
    sinks = torch.randn(QUERY_HEADS)
    time = milliseconds(lambda: step.run(0, MOST_ROWS, sinks))
    yield {
        "head_size": head_size, "length": n, "rows": MOST_ROWS, "sinks": True, "ms": time,
        "error": step.error(sinks),
    }  # fmt: skip
