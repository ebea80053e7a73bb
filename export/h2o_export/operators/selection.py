"""The operators that select memory sets, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def CandidateScore(q_window, k, k_mem, scale: float, softcap: float = 0.0):
    """Votes of a chunk's last w queries for its memory and its own keys, by one softmax over both.

    q_window [w, Hq, d] belong to the last w rows of k [n, Hkv, d]; k_mem [Hs, M, d], M may be 0 → score_mem
    [Hs, M], score_chunk [n, Hs].
    """
    zero = op.Constant(value_ints=[0])
    minus_one = op.Constant(value_ints=[-1])
    w = op.Shape(q_window, start=0, end=1)
    d = op.Shape(q_window, start=2, end=3)
    n = op.Shape(k, start=0, end=1)
    kv_heads = op.Shape(k, start=1, end=2)
    score_heads = op.Shape(k_mem, start=0, end=1)
    memory = op.Shape(k_mem, start=1, end=2)
    rows = op.Transpose(op.Cast(q_window, to=1), perm=[1, 0, 2])  # [Hq, w, d]
    factor = op.Constant(value_float=scale)
    q_mem = op.Reshape(rows, op.Concat(score_heads, minus_one, d, axis=0))  # [Hs, Hq/Hs * w, d]
    to_mem = op.Mul(op.MatMul(q_mem, op.Transpose(op.Cast(k_mem, to=1), perm=[0, 2, 1])), factor)
    heads = op.Shape(q_window, start=1, end=2)
    to_mem = h2o.SoftCap(to_mem, softcap=softcap)
    to_mem = op.Reshape(to_mem, op.Concat(heads, w, memory, axis=0), allowzero=1)  # [Hq, w, M]
    q_chunk = op.Reshape(rows, op.Concat(kv_heads, minus_one, d, axis=0))
    to_chunk = op.Mul(op.MatMul(q_chunk, op.Transpose(op.Cast(k, to=1), perm=[1, 2, 0])), factor)
    to_chunk = h2o.SoftCap(to_chunk, softcap=softcap)
    to_chunk = op.Reshape(to_chunk, op.Concat(heads, w, n, axis=0))  # [Hq, w, n]
    step = op.Constant(value_int=1)
    last = op.Squeeze(n, zero)
    key = op.Unsqueeze(op.Range(op.Constant(value_int=0), last, step), zero)  # [1, n]
    query = op.Unsqueeze(op.Range(op.Sub(last, op.Squeeze(w, zero)), last, step), minus_one)  # [w, 1]
    to_chunk = op.Where(op.LessOrEqual(key, query), to_chunk, op.Constant(value_float=float("-inf")))
    votes = op.Softmax(op.Concat(to_mem, to_chunk, axis=-1), axis=-1)  # [Hq, w, M + n]
    per_head = op.ReduceSum(votes, op.Constant(value_ints=[1]), keepdims=0)
    grouped = op.Reshape(per_head, op.Concat(score_heads, minus_one, op.Add(memory, n), axis=0))
    score = op.ReduceSum(grouped, op.Constant(value_ints=[1]), keepdims=0)  # [Hs, M + n]
    axis = op.Constant(value_ints=[1])
    score_mem = op.Slice(score, zero, memory, axis)
    score_chunk = op.Transpose(op.Slice(score, memory, op.Add(memory, n), axis), perm=[1, 0])
    return score_mem, score_chunk


@script(h2o, default_opset=op)
def MemorySelect(score, memory, chunk_range, local: int, heavy: int):
    """The next memory set: the last `local` tokens of the range and the `heavy` best other candidates.

    score [cap, Hs]; memory int32 [Hs, Mp], sorted, all below the range; chunk_range int64 [start, stop] →
    memory_next int32 [Hs, local + heavy], sorted. The higher score wins, then the lower position
    (candidates are in rising order, and TopK prefers the earlier of equals). A score
    below 1e-30 counts as 0, because engines differ in what they flush to zero.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    start = op.Gather(chunk_range, op.Constant(value_int=0), axis=0)
    stop = op.Gather(chunk_range, op.Constant(value_int=1), axis=0)
    border = op.Sub(stop, op.Constant(value_int=local))
    heads = op.Shape(memory, start=0, end=1)
    wide = op.Concat(heads, one, axis=0)
    from_chunk = op.Expand(op.Unsqueeze(op.Range(start, border, step), zero), wide)  # [Hs, n - L]
    candidates = op.Concat(op.Cast(memory, to=7), from_chunk, axis=1)  # [Hs, K]
    ranks = op.GatherElements(op.Transpose(score, perm=[1, 0]), candidates, axis=1)
    negligible = op.Less(ranks, op.Constant(value_float=1e-30))
    ranks = op.Where(negligible, op.Constant(value_float=0.0), ranks)
    best, where = op.TopK(ranks, op.Reshape(op.Constant(value_int=heavy), one), axis=1, largest=1, sorted=1)
    chosen = op.GatherElements(candidates, where, axis=1)  # [Hs, H]
    # Positions are exact in float32 up to 2^24, and every runtime has TopK of floats.
    rising, order = op.TopK(
        op.Cast(chosen, to=1), op.Reshape(op.Constant(value_int=heavy), one), axis=1, largest=0, sorted=1
    )
    heavy_set = op.GatherElements(chosen, order, axis=1)
    local_set = op.Expand(op.Unsqueeze(op.Range(border, stop, step), zero), wide)  # [Hs, L]
    memory_next = op.Cast(op.Concat(heavy_set, local_set, axis=1), to=6)
    return memory_next


@script(h2o, default_opset=op)
def BestRows(rows, ranks, past, local: int, heavy: int):
    """The last `local` rows below each tile's past, and of the others the `heavy` with the highest ranks.

    rows int64 [t, Hs, K], rising; ranks [t, Hs, K], 0 or higher; past int64 [t] → int32 [t, Hs, local + heavy],
    sorted.
    """
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    end = op.Reshape(past, op.Constant(value_ints=[-1, 1, 1]))
    border = op.Sub(end, op.Constant(value_int=local))
    early = op.Where(op.Less(rows, border), ranks, op.Constant(value_float=-1.0))
    # Rows are in rising order, and TopK prefers the earlier of equals.
    wanted = op.Reshape(op.Constant(value_int=heavy), one)
    best, where = op.TopK(early, wanted, axis=2, largest=1, sorted=1)
    rising, order = op.TopK(op.Cast(where, to=1), wanted, axis=2, largest=0, sorted=1)
    chosen = op.GatherElements(rows, op.GatherElements(where, order, axis=2), axis=2)
    window = op.Add(
        border, op.Range(op.Constant(value_int=0), op.Constant(value_int=local), step)
    )  # [t, 1, L]
    wide = op.Concat(op.Shape(rows, start=0, end=2), one, axis=0)
    return op.Cast(op.Concat(chosen, op.Expand(window, wide), axis=2), to=6)


@script(h2o, default_opset=op)
def BlockSelect(
    q,
    k_cache,
    past,
    scale: float,
    tile: int,
    stride: int,
    block_size: int,
    local: int,
    heavy: int,
    score_heads: int,
    softcap: float = 0.0,
):
    """Candidates of query tiles, by blocks of keys. The rows that vote are VotingRows.

    q [n, Hq, d]; k_cache [cap, Hkv, d]; past int64 [t]: tile i chooses among the rows below past[i] ≥ local +
    heavy. Block b is cache rows b * block_size … (b + 1) * block_size - 1. A query's score of a block is SoftCap
    of scale * (q · mean) + scale² / 2 * Σ q² * variance, both of the block's keys: the logarithm of the mean of
    exp(scale * q · k) to the second order, as if the elements of keys varied independently. A vote for a block is
    its probability among all whole blocks below past, by SampledVotes. A row's score is the sum of its block's
    votes, from all query heads of its score head. The first block, and the rows before the local window in the
    block where that begins, come before all scores. → candidates int32 [t, Hs, local + heavy], sorted: the last
    `local` rows below past, and the `heavy` best others. Ties and negligible scores are as in MemorySelect.
    """
    zero = op.Constant(value_ints=[0])
    size = op.Constant(value_int=block_size)
    step = op.Constant(value_int=1)
    got = h2o.BlockVotes(
        q,
        k_cache,
        past,
        scale=scale,
        tile=tile,
        stride=stride,
        block_size=block_size,
        score_heads=score_heads,
        softcap=softcap,
    )
    capacity = op.Shape(k_cache, start=0, end=1)
    row = op.Range(op.Constant(value_int=0), op.Squeeze(capacity, zero), step)
    ranks = op.Gather(got, op.Div(row, size), axis=2)  # [t, Hs, cap]
    end = op.Reshape(past, op.Constant(value_ints=[-1, 1, 1]))
    ranked = op.Mul(op.Div(op.Sub(end, op.Constant(value_int=local)), size), size)
    scored = op.And(op.GreaterOrEqual(row, size), op.Less(row, ranked))
    ranks = op.Where(scored, ranks, op.Constant(value_float=float("inf")))
    rows = op.Expand(row, op.Shape(ranks))
    candidates = h2o.BestRows(rows, ranks, past, local=local, heavy=heavy)
    return candidates


@script(h2o, default_opset=op)
def WithNeighbours(rows, got, capacity, reach: int):
    """What rows [t, Hs, K] got, and a quarter of what the rows at most `reach` away got. capacity [1]."""
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    margin = op.Constant(value_int=reach)
    room = op.Add(capacity, op.Mul(op.Reshape(margin, one), op.Constant(value_int=2)))
    lists = op.Shape(rows, start=0, end=2)
    empty = op.Expand(op.Constant(value_float=0.0), op.Concat(lists, room, axis=0))
    by_row = op.ScatterElements(empty, op.Add(rows, margin), got, axis=2)
    # The sum around each row, without itself.
    stop = op.Add(op.Mul(margin, op.Constant(value_int=2)), op.Constant(value_int=1))
    around = op.Range(op.Constant(value_int=0), stop, op.Constant(value_int=1))  # [2 reach + 1]
    at = op.Add(op.Unsqueeze(rows, minus_one), around)  # [t, Hs, K, 2 reach + 1]
    found = op.GatherElements(by_row, op.Reshape(at, op.Concat(lists, minus_one, axis=0)), axis=2)
    others = op.Where(op.Equal(around, margin), op.Constant(value_float=0.0), op.Reshape(found, op.Shape(at)))
    beside = op.ReduceSum(others, minus_one, keepdims=0)
    return op.Add(got, op.Mul(beside, op.Constant(value_float=0.25)))


@script(h2o, default_opset=op)
def QuerySelect(
    q,
    k_cache,
    candidates,
    past,
    first,
    scale: float,
    tile: int,
    stride: int,
    reach: int,
    local: int,
    heavy: int,
    score_heads: int,
    softcap: float = 0.0,
):
    """Memory sets of query tiles. The rows that vote are VotingRows.

    q [n, Hq, d] in tiles of `tile` rows, the last may be partial; k_cache [cap, Hkv, d]; past int64 [t]: tile
    i chooses among the rows below past[i] ≥ local + heavy. first int64 [t]: the cache row of a tile's first query,
    past[i] or later. candidates int32 [t, Hl, Mp], sorted, all below past: Hs / Hl score heads in a row share a
    list. They look at its rows, or at every row below past if Mp = 0. If Hs divides Hkv, the key/value heads of
    a score head look at the same rows. → memory_next int32 [t, Hs, local + heavy], sorted: the last `local` rows
    below past, and the `heavy` best others.

    The vote for a row is its probability among all rows looked at and the cache rows from past[i] to the voting
    row, by SampledVotes, summed over the voting rows and the score head's query heads. Its score adds a quarter of
    the votes of rows at most `reach` away, because the queries between two voting rows look there. Ties and
    negligible scores are as in MemorySelect.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    tiles = op.Shape(past, start=0, end=1)
    heads = op.Reshape(op.Constant(value_int=score_heads), one)
    capacity = op.Shape(k_cache, start=0, end=1)
    # The rows looked at, [t, Hs, K].
    lists = op.Shape(candidates, start=1, end=2)
    listed = op.Unsqueeze(op.Cast(candidates, to=7), op.Constant(value_ints=[2]))  # [t, Hl, 1, Mp]
    listed = op.Expand(listed, op.Concat(one, one, op.Div(heads, lists), one, axis=0))
    slots = op.Shape(candidates, start=2, end=3)
    listed = op.Reshape(listed, op.Concat(tiles, heads, slots, axis=0), allowzero=1)
    every = op.Squeeze(op.Mul(capacity, op.Cast(op.Equal(slots, zero), to=7)), zero)  # cap, or 0
    unlisted = op.Range(op.Constant(value_int=0), every, step)
    rows = op.Concat(listed, op.Expand(unlisted, op.Concat(tiles, heads, one, axis=0)), axis=2)
    got = h2o.QueryVotes(
        q, k_cache, rows, past, first, scale=scale, tile=tile, stride=stride, softcap=softcap
    )
    ranks = h2o.WithNeighbours(rows, got, capacity, reach=reach)
    negligible = op.Less(ranks, op.Constant(value_float=1e-30))
    ranks = op.Where(negligible, op.Constant(value_float=0.0), ranks)
    memory_next = h2o.BestRows(rows, ranks, past, local=local, heavy=heavy)
    return memory_next
