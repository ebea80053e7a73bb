"""The operators of exact attention, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def ChunkedIntraAttention(q, k, v, chunk_size: int, scale: float, score_heads: int, softcap: float = 0.0):
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
    size = op.Min(op.Constant(value_int=chunk_size), n)  # S, or n if that is shorter
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
    scores = h2o.SoftCap(scores, softcap=softcap)
    steps = op.Range(op.Constant(value_int=0), op.Squeeze(size, zero), op.Constant(value_int=1))  # [S]
    causal = op.LessOrEqual(op.Unsqueeze(steps, zero), op.Unsqueeze(steps, one))  # [S, S]
    scores = op.Where(causal, scores, op.Constant(value_float=float("-inf")))
    row_max = op.ReduceMax(scores, minus_one, keepdims=1)  # [C, Hkv, G, S, 1]
    weights = op.Exp(op.Sub(scores, row_max))
    row_sum = op.ReduceSum(weights, minus_one, keepdims=1)
    probabilities = op.Div(weights, row_sum)
    mixed = op.MatMul(probabilities, v_group)  # [C, Hkv, G, S, dv]
    # Padded queries come after the last real one and would vote for real keys: leave them out.
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
def MemoryAttention(q, k_mem, v_mem, scale: float, softcap: float = 0.0):
    """Every query attends to its score head's whole memory.

    q [n, Hq, d]; k_mem [Hs, M, d]; v_mem [Hs, M, dv], M ≥ 1 → o [n, Hq, dv], m, l [n, Hq], colsum [Hs, M]:
    the probabilities of this pass alone, summed over queries.
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
    scores = h2o.SoftCap(scores, softcap=softcap)
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
    """Combine two partial softmaxes over disjoint keys (Milakov and Gimelshein, 2018).

    o [n, Hq, dv]; m, l [n, Hq]. An empty state changes nothing; two empty states give an empty state with o =
    0.
    """
    last = op.Constant(value_ints=[-1])
    zero = op.Constant(value_float=0.0)
    one = op.Constant(value_float=1.0)
    m = op.Max(m_a, m_b)
    # Avoid exp(-inf - -inf): an empty state has weight 0 whatever its maximum.
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
def MemoryFusedAttention(
    q, k_cache, v_cache, memory, o_intra, m_intra, l_intra, scale: float, softcap: float = 0.0
):
    """MemoryGather, MemoryAttention and OnlineSoftmaxFusion in sequence → o [n, Hq, dv], colsum [Hs, M].

    Hs may also be a number that divides Hkv: the key/value heads of a score head read the same memory.
    """
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    score_heads = op.Shape(memory, start=0, end=1)
    slots = op.Shape(memory, start=1, end=2)
    spanned = op.Max(
        op.Div(op.Shape(k_cache, start=1, end=2), score_heads), one
    )  # key/value heads of a score head
    shared = op.Expand(op.Unsqueeze(memory, one), op.Concat(one, spanned, one, axis=0))
    sets = op.Reshape(shared, op.Concat(minus_one, slots, axis=0))
    k_mem, v_mem = h2o.MemoryGather(k_cache, v_cache, sets)
    o_mem, m_mem, l_mem, received = h2o.MemoryAttention(q, k_mem, v_mem, scale=scale, softcap=softcap)
    o, m, l = h2o.OnlineSoftmaxFusion(o_intra, m_intra, l_intra, o_mem, m_mem, l_mem)
    split = op.Reshape(received, op.Concat(score_heads, spanned, slots, axis=0))
    colsum = op.ReduceSum(split, one, keepdims=0)
    return o, colsum


@script(h2o, default_opset=op)
def CachedAttention(q, k_cache, v_cache, length, scale: float, window: int = 0, softcap: float = 0.0):
    """Exact attention to a cache: row r of q [n, Hq, d] stands at length - n + r and sees the cache up to itself,
    of that the last `window` rows unless it is 0.

    k_cache [cap, Hkv, d]; v_cache [cap, Hkv, dv]; length int64 scalar ≥ n → o [n, Hq, dv].
    """
    zero = op.Constant(value_ints=[0])
    minus_one = op.Constant(value_ints=[-1])
    n = op.Shape(q, start=0, end=1)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    end = op.Unsqueeze(length, zero)
    keys = op.Cast(op.Slice(k_cache, zero, end, zero), to=1)  # [length, Hkv, d]
    values = op.Cast(op.Slice(v_cache, zero, end, zero), to=1)
    grid = op.Concat(kv_heads, minus_one, n, end, axis=0)
    scores = op.Reshape(h2o.HeadScores(q, keys, scale=scale, softcap=softcap), grid)  # [Hkv, G, n, length]
    step = op.Constant(value_int=1)
    key = op.Unsqueeze(op.Range(op.Constant(value_int=0), length, step), zero)  # [1, length]
    row = op.Unsqueeze(op.Range(op.Sub(length, op.Squeeze(n, zero)), length, step), minus_one)  # [n, 1]
    width = op.Constant(value_int=window)
    most = op.Where(op.Equal(width, op.Constant(value_int=0)), length, width)
    seen = op.And(op.LessOrEqual(key, row), op.Less(op.Sub(row, most), key))
    scores = op.Where(seen, scores, op.Constant(value_float=float("-inf")))
    o = h2o.HeadOutputs(op.Softmax(scores, axis=-1), values, q)
    return o
