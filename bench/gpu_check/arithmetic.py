"""What a prompt costs a GPU on paper: FLOP, bytes, launches, and the time at rates that were measured on an H200.

    python -m bench.gpu_check.arithmetic choosing    the tables of docs/cuda.md
    python -m bench.gpu_check.arithmetic jetson      the tables of docs/jetson.md

Nothing is measured here. A rate is a share of the H200's peak (bench/results/gpu-h200.md), times another device's
peak. The host's time is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from bench.gpu_check.votes import passed

from h2o_runtime.policies.prefill import Query, Window, policy_on_device
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK
from h2o_runtime.schedule import Span, logical_batches, spans

QUERY_HEADS, KV_HEADS = 32, 8
PACKED = 64  # rows of votes that a block of threads takes at once
RATES: dict[str, dict[int, float]] = {  # TFLOP/s on the H200, by head size
    "phase1": {64: 208, 128: 268},
    "phase2": {64: 138, 128: 171},
    "full": {64: 290, 128: 371},
    "states": {64: 245, 128: 362},  # of votes, in that model; 128 as the step `tiles`
    "sums": {64: 123, 128: 182},
    "votes": {64: 190, 128: 192},  # sum_votes_f16, two passes over 3,840 candidates and 4,096 means
}
CHOSEN = 40e9  # entries a second of choose_by_sums, behind 4,096 means
PRODUCT, INT4 = 751, 311  # TFLOP/s of torch's float16 product, and of BlockProduct
COPY = 2700  # GB/s
# What ONNX Runtime's elementwise kernels take in that model at 32,768 tokens: 70 ms. In passes over a layer's rows.
PASSES = 0.07 * COPY * 1e9 / (32768 * 16 * 2048 * 2)


@dataclass(frozen=True)
class Device:
    name: str
    tflop_s: float  # float16 products, dense
    gb_s: float


H200 = Device("H200", 989, 4800)
DEVICES = (Device("Orin", 42, 204), Device("Thor", 257, 273))


@dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    head_size: int
    weights: int  # of a layer


MODELS = (
    Model("Llama-3.2-1B", 16, 2048, 64, 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192),
    Model("Qwen3-4B", 36, 2560, 128, 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728),
)


@dataclass
class Cost:
    flop: float = 0
    read: float = 0  # bytes that blocks of threads ask for, from memory or L2
    launches: int = 0
    seconds: float = 0  # on the H200

    def add(self, flop: float, rate: float, read: float, launches: int = 0) -> None:
        self.flop, self.read, self.launches = self.flop + flop, self.read + read, self.launches + launches
        self.seconds += flop / rate / 1e12

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def include(self, other: Cost) -> None:
        self.flop, self.read = self.flop + other.flop, self.read + other.read
        self.launches, self.seconds = self.launches + other.launches, self.seconds + other.seconds


def gpu_rule() -> Query:
    """Of prompts for which no policy is chosen."""
    rule = policy_on_device(Query(), "cuda")
    assert isinstance(rule, Query)
    return rule


@dataclass
class Layer:
    """Costs of one layer's attention to a prompt of n tokens."""

    n: int
    d: int
    rule: Query = field(default_factory=gpu_rule)
    attention: Cost = field(default_factory=Cost)
    choice: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        rule, n = self.rule, self.n
        sparse = n if rule.dense_end >= rule.first_of_tail(n) else rule.first_of_tail(n)
        dense = min(rule.dense_end, sparse)
        if dense:
            self.attention.include(full(dense, self.d))
        for batch in logical_batches(sparse, rule.batch_size, rule.chunk_size):
            if batch.stop <= dense:
                continue
            batch = Span(max(batch.start, dense), batch.stop)
            self._phase1(batch)
            chunks = [one for one in spans(batch.stop, rule.chunk_size, start=batch.start) if one.start]
            for past_kind, some in groupby(chunks, lambda one: self._kind(one.start)):
                self._group(past_kind, list(some))
        if sparse < n:
            self._tail(sparse)

    def _kind(self, past: int) -> tuple[int, int, int]:
        """As Query groups chunks: memory, candidates (0: the past is not narrowed) and votes."""
        rule = self.rule
        return rule.memory_at(past), rule.narrowed_to(past), rule.tile_rows // rule.stride_at(past)

    def _phase1(self, batch: Span) -> None:
        rule = self.rule
        sizes = [len(one) for one in spans(batch.stop, rule.chunk_size, start=batch.start)]
        pairs = sum(rows * (rows + 1) / 2 for rows in sizes)
        read = len(batch) * (2 * QUERY_HEADS + 2 * KV_HEADS) * self.d * 2
        self.attention.add(4 * self.d * QUERY_HEADS * pairs, RATES["phase1"][self.d], read, 1)

    def _group(self, kind: tuple[int, int, int], chunks: list[Span]) -> None:
        memory, listed, votes = kind
        rule, rows = self.rule, sum(map(len, chunks))
        tiles = -(-rows // rule.tile_rows)
        read = tiles * QUERY_HEADS * memory * self.d * 4
        self.attention.add(4 * self.d * QUERY_HEADS * rows * memory, RATES["phase2"][self.d], read, 1)
        if listed:
            self._narrow(chunks, tiles, votes)
        looked = [listed or one.start for one in chunks]
        keys = sum(map(lambda one, count: len(one) * count, chunks, looked)) / rows
        own = sum(len(one) * (len(one) + rule.tile_rows) / 2 for one in chunks) / rows
        self._vote(tiles, votes, keys, own)

    def _narrow(self, chunks: list[Span], tiles: int, votes: int) -> None:
        rows = sum(map(len, chunks))
        past = sum(one.start * len(one) for one in chunks) / rows
        read = chunks[-1].start * KV_HEADS * self.d * 2
        self.choice.add(0, 1, read, 1)
        self.choice.wait(read / COPY / 1e9)
        queries = tiles * votes * QUERY_HEADS * self.d * 2  # spread to twice as many numbers
        self.choice.add(0, 1, queries, 1)
        self.choice.wait(3 * queries / COPY / 1e9)
        self._vote(tiles, votes, past / BLOCK, width=2 * self.d)

    def _vote(self, tiles: int, votes: int, keys: float, own: float = 0, *, width: int | None = None) -> None:
        """`width`: numbers of a key; of a block of keys twice the head size."""
        width = width or self.d
        packed, looked = votes * QUERY_HEADS // KV_HEADS, passed(keys, own)
        read = tiles * KV_HEADS * width * 2 * looked * -(-packed // PACKED)
        flop = 2 * width * QUERY_HEADS * votes * tiles * looked
        self.choice.add(flop, RATES["votes"][self.d], read, 2)
        self.choice.wait(tiles * KV_HEADS * keys / CHOSEN)

    def _tail(self, first: int) -> None:
        rows = self.n - first
        pairs = rows * (self.n + first) / 2
        read = KV_HEADS * self.n * self.d * 4
        self.attention.add(4 * self.d * QUERY_HEADS * pairs, RATES["full"][self.d], read, 2)


def full(n: int, d: int) -> Cost:
    cost = Cost()
    for batch in spans(n, 4096):
        pairs = len(batch) * (batch.start + batch.stop) / 2
        read = len(batch) / 32 * KV_HEADS * (batch.start + batch.stop) / 2 * d * 4
        cost.add(4 * d * QUERY_HEADS * pairs, RATES["full"][d], read, 1)
    return cost


def window(n: int, d: int) -> Cost:
    """Attention of the rule `window`; votes of 64 rows a chunk."""
    rule, cost = Window(), Cost()
    for batch in logical_batches(n, rule.batch_size, rule.chunk_size):
        chunks = list(spans(batch.stop, rule.chunk_size, start=batch.start))
        rows, seen = len(batch), sum(map(len, chunks[1 if batch.start == 0 else 0 :]))
        cost.add(4 * d * QUERY_HEADS * rows * (rule.chunk_size + 1) / 2, RATES["phase1"][d], 0, 1)
        cost.add(4 * d * QUERY_HEADS * seen * rule.memory, RATES["phase2"][d], 0, 1)
        votes = 2 * d * QUERY_HEADS * rule.window * (rule.memory + rule.chunk_size) * len(chunks)
        cost.add(votes, RATES["states"][d], 0, 6 * len(chunks))
        cost.add(votes, RATES["sums"][d], 0)
    tail = rule.dense_tail
    cost.add(4 * d * QUERY_HEADS * tail * (n - tail / 2), RATES["full"][d], 0, 2)
    return cost


def table(head: str, rows: Iterator[list[object]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|" + "---|" * (head.count("|") + 1)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def short(x: float) -> str:
    """Three digits."""
    return f"{float(f'{x:.2e}'):,.{max(0, 2 - len(str(int(x))) + 1 if x >= 1 else 3)}f}"


LENGTHS = (4096, 8192, 16384, 32768, 131072)


def percent(x: float) -> str:
    return f"{100 * x:.0f} %"


def _size_rows() -> Iterator[list[object]]:
    for d in (64, 128):
        for n in LENGTHS:
            layer = Layer(n, d)
            costs = (layer.attention, layer.choice)
            yield [
                d, f"{n:,}", *(short(cost.flop / 1e9) for cost in costs),
                *(short(cost.read / 1e9) for cost in costs), *(cost.launches for cost in costs),
            ]  # fmt: skip


def _choosing_rows() -> Iterator[list[object]]:
    for d in (64, 128):
        for n in LENGTHS:
            layer, whole = Layer(n, d), full(n, d).seconds
            attention, choice = layer.attention.seconds, layer.choice.seconds
            yield [
                d, f"{n:,}", *(short(1e3 * seconds) for seconds in (whole, attention, choice)),
                percent(choice / attention), f"{whole / (attention + choice):.2f}",
            ]  # fmt: skip


def choosing() -> Iterator[str]:
    yield from table(
        "d | tokens | attention, GFLOP | choosing | attention, GB | choosing | attention, launches | choosing",
        _size_rows(),
    )
    yield ""
    yield from table(
        "d | tokens | full, ms | attention | choosing | choosing / attention | full / default",
        _choosing_rows(),
    )


def _first_token(model: Model, n: int, device: Device) -> list[str]:
    """Seconds to the first token under `full`, and how many times as fast the default and `window` are."""
    d, layers = model.head_size, model.layers
    slower, memory = H200.tflop_s / device.tflop_s, H200.gb_s / device.gb_s
    rest = layers * PASSES * n * model.hidden * 2 / COPY / 1e9 * memory
    first, int4 = (layers * 2 * model.weights * n / rate / 1e12 * slower + rest for rate in (PRODUCT, INT4))
    layer = Layer(n, d)
    exact, default, recent = (
        layers * seconds * slower
        for seconds in (
            full(n, d).seconds,
            layer.attention.seconds + layer.choice.seconds,
            window(n, d).seconds,
        )
    )
    return [
        short(first + exact),
        *(f"{(base + exact) / (base + default):.2f}" for base in (first, int4)),
        f"{(first + exact) / (first + recent):.2f}",
    ]


def _jetson_rows() -> Iterator[list[object]]:
    for model in MODELS:
        for n in (4096, 8192, 16384, 32768, 65536):
            yield [
                model.name,
                f"{n:,}",
                *(cell for device in DEVICES for cell in _first_token(model, n, device)),
            ]


def jetson() -> Iterator[str]:
    columns = "`full`, s | full / default | the same, int4 | full / window"
    yield from table(
        "model | tokens | " + " | ".join(f"{device.name}: {columns}" for device in DEVICES), _jetson_rows()
    )


def main() -> None:
    found = {"choosing": choosing, "jetson": jetson}.get(sys.argv[1] if len(sys.argv) == 2 else "")
    if found is None:
        sys.exit(__doc__)
    print("\n".join(found()))


if __name__ == "__main__":
    main()
