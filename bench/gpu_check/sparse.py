"""Sparse attention on the GPU: selection of keys, attention to the selected keys, and other kinds of layers.

Each function returns the calls by name, and the FLOP of their products. All read the cache of a `Layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from bench.gpu_check.layer import KV_HEADS, LOCAL, QUERY_HEADS, SLOTS, Layer
from bench.gpu_check.library import Library, offset
from bench.gpu_check.votes import passed

Calls = dict[str, tuple[Callable[[], None], float]]
BATCH = 4096  # rows of a call
TILE = 128  # rows with one memory set, of the rule `query`
BLOCK = 32  # keys whose mean and variance a vote scores for candidates
NARROWED_FROM = 1.5  # times as many rows as candidates; tiles choose from a shorter past itself
PAGE, PAGE_BUDGET = 16, 64
VOTERS, COLUMNS, DISTANCES = 64, 512, 1024
WINDOW, LANDMARK_BLOCK = 128, 64
SLIDING, SOFTCAP = 1024, 50.0  # of layers with a window, and of capped scores


def _room(nbytes: int) -> Any:
    return torch.empty(nbytes, dtype=torch.uint8)


def _rows(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.int32)


@dataclass(frozen=True)
class Rule:
    """Sizes of the rule `query`: score heads, candidates, keys of a set, and rows of a tile to a vote."""

    heads: int
    listed: int
    slots: int
    stride: int


RULES = {
    "": Rule(KV_HEADS, 2560, SLOTS, 4),  # of `grow=never`
    ", grown": Rule(KV_HEADS, 9600, 1920, 8),  # the default behind 8,192 rows
}


def query(library: Library, layer: Layer) -> Calls:
    """The last batch's tiles choose candidates by blocks of keys, sets from these, and attend to the sets."""
    tiles, first = BATCH // TILE, layer.n - BATCH
    begins = torch.arange(tiles) * TILE + first
    past = (begins - first) // layer.chunk * layer.chunk + first
    q, pair = offset(layer.q, first), 2 * layer.d * QUERY_HEADS * BATCH  # FLOP of each row with a key
    state = library.State(*(offset(rows, first) for rows in (layer.o, layer.m, layer.l)))
    calls: Calls = {}
    for name, rule in RULES.items():
        shape = library.Shape(QUERY_HEADS, KV_HEADS, rule.heads, layer.d, layer.d**-0.5, 1)
        count = rule.listed if first >= NARROWED_FROM * rule.listed else 0
        listed, lists = _rows(tiles, KV_HEADS, count), None
        sets = _rows(tiles, rule.heads, rule.slots)
        if count:
            border = torch.arange(count, dtype=torch.int32) + (first - count)
            lists = border.expand(tiles, rule.heads, count).contiguous()
        need = library.block_select_workspace(layer.shape, BATCH, TILE, rule.stride, BLOCK, layer.n)
        room = _room(
            max(need, library.query_select_workspace(shape, BATCH, TILE, rule.stride, count, layer.n))
        )

        def narrow(rule: Rule = rule, listed: Any = listed, room: Any = room) -> None:
            layer.run(
                library.block_select, layer.shape, BATCH, TILE, rule.stride, BLOCK, LOCAL, rule.listed - LOCAL, q,
                layer.kv, past, listed, room, room.numel(),
            )  # fmt: skip

        def choose(
            shape: Any = shape,
            rule: Rule = rule,
            count: int = count,
            lists: Any = lists,
            sets: Any = sets,
            room: Any = room,
        ) -> None:
            layer.run(
                library.query_select, shape, BATCH, TILE, rule.stride, count, LOCAL, rule.slots - LOCAL, q,
                layer.kv, lists, past, begins, sets, room, room.numel(),
            )  # fmt: skip

        def attend(shape: Any = shape, rule: Rule = rule, sets: Any = sets) -> None:
            layer.run(
                library.tiled_memory_attention,
                shape,
                BATCH,
                TILE,
                rule.slots,
                q,
                layer.kv,
                sets,
                state,
                state,
            )

        rows = int(past.sum()) / tiles
        own = float((begins - past).float().mean()) + TILE  # rows of a tile's chunk that pass once
        if count:
            calls[f"candidates{name}"] = narrow, 2 * pair / rule.stride * passed(rows / BLOCK)
        calls[f"tiles{name}"] = choose, pair / rule.stride * passed(count or rows, own)
        calls[f"attention{name}"] = attend, 2 * pair * rule.slots
    return calls


def pages(library: Library, layer: Layer) -> Calls:
    """One token: selection of pages by their bounds, and attention to them."""
    count, last = layer.n // PAGE, layer.n - 1
    paged = layer.k[: count * PAGE].float().view(count, PAGE, KV_HEADS, layer.d)
    least, highest = paged.amin(1), paged.amax(1)
    chosen = _rows(KV_HEADS, PAGE_BUDGET)
    room = _room(library.page_select_workspace(layer.shape, count))
    parts = _room(library.page_attention_workspace(layer.shape, PAGE, PAGE_BUDGET))
    q, o = offset(layer.q, last), offset(layer.o, last)

    def select() -> None:
        layer.run(
            library.page_select, layer.shape, q, layer.length, PAGE, count, least, highest, PAGE_BUDGET, chosen,
            room, room.numel(),
        )  # fmt: skip

    def attend() -> None:
        layer.run(
            library.page_attention,
            layer.shape,
            q,
            layer.kv,
            layer.length,
            PAGE,
            PAGE_BUDGET,
            chosen,
            o,
            parts,
            parts.numel(),
        )

    pair = 4 * layer.d * QUERY_HEADS
    return {"select": (select, pair * count), "attend": (attend, pair * PAGE * PAGE_BUDGET)}


def lines(library: Library, layer: Layer) -> Calls:
    """The last queries choose the lines, and the last chunk's rows attend to them."""
    shape = library.Shape(QUERY_HEADS, KV_HEADS, QUERY_HEADS, layer.d, layer.d**-0.5, 1)
    columns, distances = _rows(QUERY_HEADS, COLUMNS), _rows(QUERY_HEADS, DISTANCES)
    first, n = layer.n - layer.chunk, layer.chunk
    votes = _room(library.vertical_slash_select_workspace(shape, VOTERS, layer.n))
    runs = _room(library.vertical_slash_attention_workspace(shape, n, layer.n, COLUMNS, DISTANCES))

    def select() -> None:
        layer.run(
            library.vertical_slash_select, shape, VOTERS, offset(layer.q, layer.n - VOTERS), layer.kv,
            layer.length, COLUMNS, DISTANCES, 4, 64, columns, distances, votes, votes.numel(),
        )  # fmt: skip

    def attend() -> None:
        layer.run(
            library.vertical_slash_attention, shape, n, offset(layer.q, first), layer.kv, layer.length, COLUMNS,
            columns, DISTANCES, distances, offset(layer.o, first), runs, runs.numel(),
        )  # fmt: skip

    # For the most columns and distances: some are above the diagonal, or counted twice.
    pair = 4 * layer.d * QUERY_HEADS
    return {
        "select": (select, 1.5 * pair * VOTERS * layer.n),
        "attend": (attend, pair * n * (COLUMNS + DISTANCES)),
    }


def subquadratic(library: Library, layer: Layer) -> Calls:
    """The last batch's rows attend to a window, powers of two and landmarks."""
    blocks, first = layer.n // LANDMARK_BLOCK, layer.n - BATCH
    means = [
        x[: blocks * LANDMARK_BLOCK].float().view(blocks, LANDMARK_BLOCK, KV_HEADS, layer.d).mean(1)
        for x in (layer.k, layer.v)
    ]
    pattern = library.Pattern(WINDOW, LANDMARK_BLOCK, 1, 0.0)
    sink = _rows(1)

    def attend() -> None:
        layer.run(
            library.subquadratic_attention, layer.shape, pattern, BATCH, offset(layer.q, first), layer.kv,
            layer.length, *means, 1, sink, offset(layer.o, first),
        )  # fmt: skip

    seen = WINDOW + 2 + layer.n.bit_length() + blocks.bit_length()  # about the same number of keys per row
    return {"attend": (attend, 4 * layer.d * QUERY_HEADS * BATCH * seen)}


def layer_kinds(library: Library, layer: Layer) -> Calls:
    """The last batch, and the last token, of layers with a window or with capped scores."""

    def attention(rows: int, window: int, softcap: float) -> Callable[[], None]:
        first, value_size = layer.n - rows, layer.d
        shape = library.Shape(
            QUERY_HEADS, KV_HEADS, KV_HEADS, layer.d, layer.d**-0.5, 1, value_size, window, softcap
        )
        room = _room(library.cached_attention_workspace(shape, rows, layer.n))

        def run() -> None:
            layer.run(
                library.cached_attention, shape, rows, offset(layer.q, first), layer.kv, layer.length,
                offset(layer.o, first), room, room.numel(),
            )  # fmt: skip

        return run

    pair = 4 * layer.d * QUERY_HEADS
    calls: Calls = {}
    for rows in (BATCH, 1):
        calls[f"window, {rows} rows"] = attention(rows, SLIDING, 0.0), pair * rows * SLIDING
        past = layer.n - (rows - 1) / 2
        calls[f"cap, {rows} rows"] = attention(rows, 0, SOFTCAP), pair * rows * past
    return calls


GROUPS: dict[str, Callable[[Library, Layer], Calls]] = {
    "query": query,
    "pages": pages,
    "lines": lines,
    "subquadratic": subquadratic,
    "layer kinds": layer_kinds,
}
