"""The operators of ONNX domain `h2o`, version 1, as functions of standard operators.

These bodies are the specification: any ONNX runtime can execute them, and every kernel is compared with
them. Their signatures are those of h2o_runtime.operators, which a test compares with these; sizes are named there,
and G = Hq / Hkv. Arithmetic, states and scores are float32. A state of l = 0, m = -inf is empty.

The bodies are read by onnxscript as source text, so they use its vocabulary: `op` is the ONNX operator set,
annotated parameters are attributes, `op.Constant` makes scalars and shapes.
"""

# mypy takes the bodies for Python and every value for a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import onnx
from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_export.landmark_operators import LandmarkUpdate, SubquadraticAttention
from h2o_export.line_operators import VerticalSlashAttention, VerticalSlashSelect
from h2o_export.page_operators import PageAttention, PageBounds, PageSelect
from h2o_export.product_operators import BlockProduct
from h2o_export.trace import OPSET
from h2o_runtime import operators as table

DOMAIN, VERSION = table.DOMAIN, table.VERSION
h2o = Opset(DOMAIN, VERSION)


@script(h2o, default_opset=op)
def ChunkedIntraAttention(q, k, v, chunk_size: int, scale: float, score_heads: int):
    """Causal attention inside chunks of `chunk_size`; row 0 starts a chunk, the last one may be partial.

    q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv] → o [n, Hq, dv], m, l [n, Hq], colsum [n, score_heads]: the
    probability that each key received, summed over its chunk's queries and the score head's query heads.
    """
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    zero = op.Constant(value_ints=[0])
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    kv_heads = op.Shape(k, start=1, end=2)
    size = op.Min(op.Constant(value_int=chunk_size), n)  # S, or n where that is shorter
    chunks = op.Div(op.Sub(op.Add(n, size), one), size)  # C
    pads = op.Concat(op.Constant(value_ints=[0, 0, 0]), op.Sub(op.Mul(chunks, size), n), zero, zero, axis=0)
    q_rows = op.Reshape(
        op.Pad(op.Cast(q, to=1), pads), op.Concat(chunks, size, kv_heads, minus_one, d, axis=0)
    )
    dv = op.Shape(v, start=2, end=3)
    k_rows = op.Reshape(op.Pad(op.Cast(k, to=1), pads), op.Concat(chunks, size, kv_heads, d, axis=0))
    v_rows = op.Reshape(op.Pad(op.Cast(v, to=1), pads), op.Concat(chunks, size, kv_heads, dv, axis=0))
    q_group = op.Transpose(q_rows, perm=[0, 2, 3, 1, 4])  # [C, Hkv, G, S, d]
    k_group = op.Unsqueeze(
        op.Transpose(k_rows, perm=[0, 2, 3, 1]), op.Constant(value_ints=[2])
    )  # [C, Hkv, 1, d, S]
    v_group = op.Unsqueeze(
        op.Transpose(v_rows, perm=[0, 2, 1, 3]), op.Constant(value_ints=[2])
    )  # [C, Hkv, 1, S, dv]
    scores = op.Mul(op.MatMul(q_group, k_group), op.Constant(value_float=scale))  # [C, Hkv, G, S, S]
    steps = op.Range(op.Constant(value_int=0), op.Squeeze(size, zero), op.Constant(value_int=1))  # [S]
    causal = op.LessOrEqual(op.Unsqueeze(steps, zero), op.Unsqueeze(steps, one))  # [S, S]
    scores = op.Where(causal, scores, op.Constant(value_float=float("-inf")))
    row_max = op.ReduceMax(scores, minus_one, keepdims=1)  # [C, Hkv, G, S, 1]
    weights = op.Exp(op.Sub(scores, row_max))
    row_sum = op.ReduceSum(weights, minus_one, keepdims=1)
    probabilities = op.Div(weights, row_sum)
    mixed = op.MatMul(probabilities, v_group)  # [C, Hkv, G, S, dv]
    # Padded queries stand behind the last real one, so they would vote for real keys: leave them out.
    rows = op.Mul(chunks, size)  # C*S, padding included
    every = op.Range(op.Constant(value_int=0), op.Squeeze(rows, zero), op.Constant(value_int=1))
    positions = op.Reshape(every, op.Concat(chunks, one, one, size, one, axis=0))
    votes = op.Where(op.Less(positions, n), probabilities, op.Constant(value_float=0.0))
    received = op.ReduceSum(votes, op.Constant(value_ints=[3]), keepdims=0)  # [C, Hkv, G, S]
    head_rows = op.Concat(rows, minus_one, axis=0)
    colsum_query = op.Reshape(op.Transpose(received, perm=[0, 3, 1, 2]), head_rows)  # [C*S, Hq]
    colsum_real = op.Slice(colsum_query, zero, n, zero)
    colsum_split = op.Reshape(
        colsum_real, op.Concat(n, op.Reshape(op.Constant(value_int=score_heads), one), minus_one, axis=0)
    )
    colsum = op.ReduceSum(colsum_split, minus_one, keepdims=0)  # [n, Hs]
    o_rows = op.Reshape(op.Transpose(mixed, perm=[0, 3, 1, 2, 4]), op.Concat(rows, minus_one, dv, axis=0))
    o = op.CastLike(op.Slice(o_rows, zero, n, zero), q)
    m = op.Slice(op.Reshape(op.Transpose(row_max, perm=[0, 3, 1, 2, 4]), head_rows), zero, n, zero)
    l = op.Slice(op.Reshape(op.Transpose(row_sum, perm=[0, 3, 1, 2, 4]), head_rows), zero, n, zero)
    return o, m, l, colsum


@script(h2o, default_opset=op)
def MemoryGather(k_cache, v_cache, memory):
    """Rows of the cache by position. k_cache [cap, Hkv, d]; v_cache [cap, Hkv, dv]; memory [Hs, M]
    → k_mem [Hs, M, d], v_mem [Hs, M, dv].

    With Hs = Hq, score head s reads key/value head s // (Hq / Hkv).
    """
    zero = op.Constant(value_ints=[0])
    kv_heads = op.Shape(k_cache, start=1, end=2)
    score_heads = op.Shape(memory, start=0, end=1)
    group = op.Div(score_heads, kv_heads)
    steps = op.Range(op.Constant(value_int=0), op.Squeeze(score_heads, zero), op.Constant(value_int=1))
    head = op.Unsqueeze(op.Div(steps, group), op.Constant(value_ints=[1]))  # [Hs, 1]
    rows = op.Add(op.Mul(op.Cast(memory, to=7), kv_heads), head)  # [Hs, M]
    minus_one = op.Constant(value_ints=[-1])
    flat_keys = op.Concat(minus_one, op.Shape(k_cache, start=2, end=3), axis=0)
    flat_values = op.Concat(minus_one, op.Shape(v_cache, start=2, end=3), axis=0)
    k_mem = op.Gather(op.Reshape(k_cache, flat_keys), rows, axis=0)
    v_mem = op.Gather(op.Reshape(v_cache, flat_values), rows, axis=0)
    return k_mem, v_mem


@script(h2o, default_opset=op)
def MemoryAttention(q, k_mem, v_mem, scale: float):
    """Every query attends to its score head's whole memory.

    q [n, Hq, d]; k_mem [Hs, M, d]; v_mem [Hs, M, dv], M ≥ 1
    → o [n, Hq, dv], m, l [n, Hq], colsum [Hs, M]: this pass's own probabilities, summed over queries.
    """
    minus_one = op.Constant(value_ints=[-1])
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    score_heads = op.Shape(k_mem, start=0, end=1)
    split = op.Reshape(op.Cast(q, to=1), op.Concat(n, score_heads, minus_one, d, axis=0))
    packed_shape = op.Concat(score_heads, minus_one, d, axis=0)
    packed = op.Reshape(op.Transpose(split, perm=[1, 2, 0, 3]), packed_shape)  # [Hs, Hq/Hs * n, d]
    keys = op.Transpose(op.Cast(k_mem, to=1), perm=[0, 2, 1])
    scores = op.Mul(op.MatMul(packed, keys), op.Constant(value_float=scale))  # [Hs, Hq/Hs * n, M]
    row_max = op.ReduceMax(scores, minus_one, keepdims=1)
    weights = op.Exp(op.Sub(scores, row_max))
    row_sum = op.ReduceSum(weights, minus_one, keepdims=1)
    probabilities = op.Div(weights, row_sum)
    colsum = op.ReduceSum(probabilities, op.Constant(value_ints=[1]), keepdims=0)  # [Hs, M]
    mixed = op.MatMul(probabilities, op.Cast(v_mem, to=1))
    dv = op.Shape(v_mem, start=2, end=3)
    o_shape = op.Concat(score_heads, minus_one, n, dv, axis=0)
    o_rows = op.Transpose(op.Reshape(mixed, o_shape), perm=[2, 0, 1, 3])  # [n, Hs, Hq/Hs, dv]
    o = op.CastLike(op.Reshape(o_rows, op.Concat(op.Shape(q, start=0, end=2), dv, axis=0)), q)
    state_shape = op.Concat(score_heads, minus_one, n, axis=0)
    head_shape = op.Concat(n, minus_one, axis=0)
    m = op.Reshape(op.Transpose(op.Reshape(row_max, state_shape), perm=[2, 0, 1]), head_shape)  # [n, Hq]
    l = op.Reshape(op.Transpose(op.Reshape(row_sum, state_shape), perm=[2, 0, 1]), head_shape)
    return o, m, l, colsum


@script(h2o, default_opset=op)
def OnlineSoftmaxFusion(o_a, m_a, l_a, o_b, m_b, l_b):
    """Join two partial softmaxes over disjoint keys (Milakov and Gimelshein, 2018). o [n, Hq, dv]; m, l [n, Hq].

    An empty state changes nothing; two empty states give an empty one with o = 0.
    """
    last = op.Constant(value_ints=[-1])
    zero = op.Constant(value_float=0.0)
    one = op.Constant(value_float=1.0)
    m = op.Max(m_a, m_b)
    # exp is not asked for -inf - -inf: an empty side has weight 0 whatever its maximum says.
    some_a = op.Greater(l_a, zero)
    some_b = op.Greater(l_b, zero)
    w_a = op.Mul(l_a, op.Exp(op.Where(some_a, op.Sub(m_a, m), zero)))
    w_b = op.Mul(l_b, op.Exp(op.Where(some_b, op.Sub(m_b, m), zero)))
    l = op.Add(w_a, w_b)
    inverse = op.Div(one, op.Where(op.Greater(l, zero), l, one))
    share_a = op.Unsqueeze(op.Mul(w_a, inverse), last)
    share_b = op.Unsqueeze(op.Mul(w_b, inverse), last)
    wide_a = op.Where(op.Unsqueeze(some_a, last), op.Cast(o_a, to=1), zero)
    wide_b = op.Where(op.Unsqueeze(some_b, last), op.Cast(o_b, to=1), zero)
    o = op.CastLike(op.Add(op.Mul(share_a, wide_a), op.Mul(share_b, wide_b)), o_a)
    return o, m, l


@script(h2o, default_opset=op)
def MemoryFusedAttention(q, k_cache, v_cache, memory, o_intra, m_intra, l_intra, scale: float):
    """MemoryGather, MemoryAttention and OnlineSoftmaxFusion in sequence → o [n, Hq, dv], colsum [Hs, M].

    Hs may also be a number that divides Hkv: the key/value heads of a score head read the same memory.
    """
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    score_heads = op.Shape(memory, start=0, end=1)
    slots = op.Shape(memory, start=1, end=2)
    spanned = op.Max(
        op.Div(op.Shape(k_cache, start=1, end=2), score_heads), one
    )  # key/value heads a score head
    shared = op.Expand(op.Unsqueeze(memory, one), op.Concat(one, spanned, one, axis=0))
    sets = op.Reshape(shared, op.Concat(minus_one, slots, axis=0))
    k_mem, v_mem = h2o.MemoryGather(k_cache, v_cache, sets)
    o_mem, m_mem, l_mem, received = h2o.MemoryAttention(q, k_mem, v_mem, scale=scale)
    o, m, l = h2o.OnlineSoftmaxFusion(o_intra, m_intra, l_intra, o_mem, m_mem, l_mem)
    split = op.Reshape(received, op.Concat(score_heads, spanned, slots, axis=0))
    colsum = op.ReduceSum(split, one, keepdims=0)
    return o, colsum


@script(h2o, default_opset=op)
def CandidateScore(q_window, k, k_mem, scale: float):
    """Votes of a chunk's last w queries for its memory and its own keys, by one softmax over both.

    q_window [w, Hq, d] belong to the last w rows of k [n, Hkv, d]; k_mem [Hs, M, d], M may be 0
    → score_mem [Hs, M], score_chunk [n, Hs].
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
    to_mem = op.Reshape(to_mem, op.Concat(heads, w, memory, axis=0), allowzero=1)  # [Hq, w, M]
    q_chunk = op.Reshape(rows, op.Concat(kv_heads, minus_one, d, axis=0))
    to_chunk = op.Mul(op.MatMul(q_chunk, op.Transpose(op.Cast(k, to=1), perm=[1, 2, 0])), factor)
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
def MemorySelect(score, memory, chunk_range, local: int, heavy: int, sink: int):
    """The next memory set: the range's last `local` tokens and the `heavy` best of all other candidates.

    score [cap, Hs]; memory int32 [Hs, Mp], sorted, all below the range; chunk_range int64 [start, stop]
    → memory_next int32 [Hs, local + heavy], sorted. Positions below `sink` always win, then the higher score,
    then the lower index (candidates stand in rising order, and TopK prefers the earlier of equals). A score
    below 1e-30 counts as 0: so close to float32's end, engines differ in what they round to zero.
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
    is_sink = op.Less(candidates, op.Constant(value_int=sink))
    ranks = op.Where(is_sink, op.Constant(value_float=float("inf")), ranks)
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
def QuerySelect(
    q,
    k_cache,
    candidates,
    past,
    scale: float,
    tile: int,
    stride: int,
    share: int,
    reach: int,
    local: int,
    heavy: int,
    sink: int,
):
    """Memory sets of tiles of queries, chosen by themselves: every `stride`-th row of a tile votes, its first too.

    q [n, Hq, d] in tiles of `tile` rows, the last may be partial; k_cache [cap, Hkv, d]; past int64 [t]: tile i
    chooses among the rows below past[i] ≥ local + heavy. candidates int32 [c, Hs, Mp], sorted, all below past:
    list i // share is what tile i looks at; of Mp = 0 it looks at every row. Hs may also be a number that divides
    Hkv: the key/value heads of a score head look at the same rows.
    → memory_next int32 [t, Hs, local + heavy], sorted: the last `local` rows below past, and the `heavy` best
    of the others. What a row gets is its softmax probability over all that are looked at, summed over the votes
    and the score head's query heads; its score adds a quarter of what the rows up to `reach` before and behind it
    get: queries between two votes look there. Sinks, ties and what is negligible are as in MemorySelect.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    first = op.Constant(value_int=0)
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    tiles = op.Shape(past, start=0, end=1)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    score_heads = op.Shape(candidates, start=1, end=2)
    size = op.Reshape(op.Constant(value_int=tile), one)
    spanned = op.Max(op.Div(kv_heads, score_heads), one)  # key/value heads a score head
    votings = op.Mul(score_heads, spanned)  # Hv = max(Hs, Hkv)
    # The votes, [t, Hv, w, Hq/Hv, d]. Rows behind the last real one do not vote.
    missing = op.Sub(op.Mul(tiles, size), n)
    pads = op.Concat(op.Constant(value_ints=[0, 0, 0]), missing, zero, zero, axis=0)
    tiled = op.Reshape(op.Pad(op.Cast(q, to=1), pads), op.Concat(tiles, size, votings, minus_one, d, axis=0))
    steps = op.Reshape(op.Constant(value_int=stride), one)
    sample = op.Transpose(op.Slice(tiled, zero, size, one, steps), perm=[0, 2, 1, 3, 4])
    every_row = op.Range(first, op.Squeeze(op.Mul(tiles, size), zero), step)
    grid = op.Reshape(every_row, op.Concat(tiles, one, size, one, one, axis=0))
    real = op.Less(op.Slice(grid, zero, size, op.Constant(value_ints=[2]), steps), n)  # [t, 1, w, 1, 1]
    # The rows that are looked at, [t, Hs, K].
    each_tile = op.Range(first, op.Squeeze(tiles, zero), step)
    listed = op.Gather(op.Cast(candidates, to=7), op.Div(each_tile, op.Constant(value_int=share)), axis=0)
    unlisted = op.Cast(op.Equal(op.Shape(candidates, start=2, end=3), zero), to=7)
    every = op.Squeeze(op.Mul(op.Shape(k_cache, start=0, end=1), unlisted), zero)  # cap, or 0
    unlisted_rows = op.Expand(op.Range(first, every, step), op.Concat(tiles, score_heads, one, axis=0))
    rows = op.Concat(listed, unlisted_rows, axis=2)
    shared = op.Unsqueeze(rows, op.Constant(value_ints=[2]))
    shared = op.Expand(shared, op.Concat(one, one, spanned, one, axis=0))
    looked_at = op.Reshape(shared, op.Concat(tiles, votings, minus_one, axis=0))  # [t, Hv, K]
    heads = op.Range(first, op.Squeeze(votings, zero), step)
    head = op.Unsqueeze(op.Div(heads, op.Div(votings, kv_heads)), one)  # [Hv, 1]
    flat = op.Reshape(op.Cast(k_cache, to=1), op.Concat(minus_one, d, axis=0))
    keys = op.Gather(flat, op.Add(op.Mul(looked_at, kv_heads), head), axis=0)  # [t, Hv, K, d]
    # Their scores.
    packed = op.Reshape(sample, op.Concat(tiles, votings, minus_one, d, axis=0))
    dots = op.Mul(op.MatMul(packed, op.Transpose(keys, perm=[0, 1, 3, 2])), op.Constant(value_float=scale))
    end = op.Reshape(past, op.Constant(value_ints=[-1, 1, 1]))
    seen = op.Unsqueeze(op.Less(looked_at, end), op.Constant(value_ints=[2]))
    votes = op.Softmax(op.Where(seen, dots, op.Constant(value_float=float("-inf"))), axis=-1)
    by_vote = op.Concat(op.Shape(sample, start=0, end=4), minus_one, axis=0)
    counted = op.Where(real, op.Reshape(votes, by_vote), op.Constant(value_float=0.0))
    of_each = op.ReduceSum(counted, op.Constant(value_ints=[2, 3]), keepdims=0)  # [t, Hv, K]
    split = op.Reshape(of_each, op.Concat(tiles, score_heads, spanned, minus_one, axis=0))
    got = op.ReduceSum(split, op.Constant(value_ints=[2]), keepdims=0)  # [t, Hs, K]
    # By row, with `reach` empty rows before and behind; then what stands around each, itself not.
    margin = op.Constant(value_int=reach)
    room = op.Add(
        op.Shape(k_cache, start=0, end=1), op.Mul(op.Reshape(margin, one), op.Constant(value_int=2))
    )
    shape = op.Concat(tiles, score_heads, room, axis=0)
    by_row = op.ScatterElements(
        op.Expand(op.Constant(value_float=0.0), shape), op.Add(rows, margin), got, axis=2
    )
    around = op.Range(first, op.Add(op.Mul(margin, op.Constant(value_int=2)), step), step)  # [2 reach + 1]
    at = op.Add(op.Unsqueeze(rows, minus_one), around)  # [t, Hs, K, 2 reach + 1]
    found = op.GatherElements(
        by_row, op.Reshape(at, op.Concat(tiles, score_heads, minus_one, axis=0)), axis=2
    )
    others = op.Where(op.Equal(around, margin), op.Constant(value_float=0.0), op.Reshape(found, op.Shape(at)))
    beside = op.ReduceSum(others, minus_one, keepdims=0)
    ranks = op.Add(got, op.Mul(beside, op.Constant(value_float=0.25)))
    negligible = op.Less(ranks, op.Constant(value_float=1e-30))
    ranks = op.Where(negligible, op.Constant(value_float=0.0), ranks)
    ranks = op.Where(op.Less(rows, op.Constant(value_int=sink)), op.Constant(value_float=float("inf")), ranks)
    border = op.Sub(end, op.Constant(value_int=local))
    ranks = op.Where(op.Less(rows, border), ranks, op.Constant(value_float=-1.0))
    # They stand in rising order, and TopK prefers the earlier of equals.
    wanted = op.Reshape(op.Constant(value_int=heavy), one)
    best, where = op.TopK(ranks, wanted, axis=2, largest=1, sorted=1)
    rising, order = op.TopK(op.Cast(where, to=1), wanted, axis=2, largest=0, sorted=1)
    chosen = op.GatherElements(rows, op.GatherElements(where, order, axis=2), axis=2)
    window = op.Add(border, op.Range(first, op.Constant(value_int=local), step))  # [t, 1, L]
    window = op.Expand(window, op.Concat(one, score_heads, one, axis=0))
    memory_next = op.Cast(op.Concat(chosen, window, axis=2), to=6)
    return memory_next


@script(h2o, default_opset=op)
def CachedAttention(q, k_cache, v_cache, length, scale: float):
    """Exact attention to a cache: row r of q [n, Hq, d] stands at length - n + r and sees the cache up to itself.

    k_cache [cap, Hkv, d]; v_cache [cap, Hkv, dv]; length int64 scalar ≥ n → o [n, Hq, dv].
    """
    zero = op.Constant(value_ints=[0])
    minus_one = op.Constant(value_ints=[-1])
    n = op.Shape(q, start=0, end=1)
    d = op.Shape(q, start=2, end=3)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    end = op.Unsqueeze(length, zero)
    keys = op.Cast(op.Slice(k_cache, zero, end, zero), to=1)  # [length, Hkv, d]
    values = op.Cast(op.Slice(v_cache, zero, end, zero), to=1)
    split = op.Reshape(op.Cast(q, to=1), op.Concat(n, kv_heads, minus_one, d, axis=0))
    packed_shape = op.Concat(kv_heads, minus_one, d, axis=0)
    packed = op.Reshape(op.Transpose(split, perm=[1, 2, 0, 3]), packed_shape)  # [Hkv, G * n, d]
    scores = op.Mul(op.MatMul(packed, op.Transpose(keys, perm=[1, 2, 0])), op.Constant(value_float=scale))
    grid = op.Concat(kv_heads, minus_one, n, end, axis=0)
    scores = op.Reshape(scores, grid)  # [Hkv, G, n, length]
    step = op.Constant(value_int=1)
    key = op.Unsqueeze(op.Range(op.Constant(value_int=0), length, step), zero)  # [1, length]
    row = op.Unsqueeze(op.Range(op.Sub(length, op.Squeeze(n, zero)), length, step), minus_one)  # [n, 1]
    scores = op.Where(op.LessOrEqual(key, row), scores, op.Constant(value_float=float("-inf")))
    probabilities = op.Reshape(op.Softmax(scores, axis=-1), op.Concat(kv_heads, minus_one, end, axis=0))
    dv = op.Shape(v_cache, start=2, end=3)
    mixed = op.MatMul(probabilities, op.Transpose(values, perm=[1, 0, 2]))  # [Hkv, G * n, dv]
    o_rows = op.Transpose(op.Reshape(mixed, op.Concat(kv_heads, minus_one, n, dv, axis=0)), perm=[2, 0, 1, 3])
    o = op.CastLike(op.Reshape(o_rows, op.Concat(op.Shape(q, start=0, end=2), dv, axis=0)), q)
    return o


OPERATORS = (
    ChunkedIntraAttention,
    MemoryGather,
    MemoryAttention,
    OnlineSoftmaxFusion,
    MemoryFusedAttention,
    CandidateScore,
    MemorySelect,
    QuerySelect,
    CachedAttention,
    LandmarkUpdate,
    SubquadraticAttention,
    PageBounds,
    PageSelect,
    PageAttention,
    VerticalSlashSelect,
    VerticalSlashAttention,
)

DENSE_OPERATORS = (BlockProduct,)


def function_protos(operators: Sequence[Any] = OPERATORS) -> list[onnx.FunctionProto]:
    """The operators' bodies, in standard operators alone."""
    protos: dict[str, onnx.FunctionProto] = {}
    for operator in operators:
        proto = operator.to_function_proto()
        del proto.opset_import[:]
        proto.opset_import.append(onnx.helper.make_opsetid("", OPSET))
        nodes = [
            _expanded(node, protos[node.op_type]) if node.domain == DOMAIN else [node] for node in proto.node
        ]
        body = list(itertools.chain.from_iterable(nodes))
        del proto.node[:]
        proto.node.extend(body)
        protos[proto.name] = proto
    return list(protos.values())


def _expanded(call: onnx.NodeProto, callee: onnx.FunctionProto) -> list[onnx.NodeProto]:
    """The body of `callee` in the place of `call`, a node inside another body.

    ONNX lets one function call another. TensorRT's parser, there, takes the attribute `scale` for 0 without a
    word, and a graph's values for those of the same name inside the body.
    """
    values = dict(zip((*callee.input, *callee.output), (*call.input, *call.output), strict=True))
    attributes = {attribute.name: attribute for attribute in call.attribute}
    nodes = []
    for inner in callee.node:
        node = onnx.NodeProto()
        node.CopyFrom(inner)
        node.name = f"{callee.name}.{inner.name}"
        for names in (node.input, node.output):
            names[:] = [name and values.get(name, f"{callee.name}.{name}") for name in names]
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(attributes[attribute.ref_attr_name])
                attribute.name = name
        nodes.append(node)
    return nodes
