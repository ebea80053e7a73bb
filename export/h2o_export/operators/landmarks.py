"""The operators of the subquadratic pattern, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def LandmarkUpdate(k_cache, v_cache, k_mean, v_mean, start, length, block_size: int):
    """Add the rows start … length - 1 to the means of blocks of cache rows; rows before `start` are already
    included.

    k_cache, v_cache [cap, Hkv, d]; k_mean, v_mean float32 [Nb, Hkv, d], block b begins at row b·block_size;
    start, length int64 scalars → k_mean_next, v_mean_next. The mean of an incomplete block covers the rows so
    far.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    size = op.Constant(value_int=block_size)
    blocks = op.Shape(k_mean, start=0, end=1)
    index = op.Range(op.Constant(value_int=0), op.Squeeze(blocks, zero), step)  # [Nb]
    row = op.Range(op.Constant(value_int=0), length, step)  # [length]
    member = op.Equal(op.Unsqueeze(op.Div(row, size), zero), op.Unsqueeze(index, one))  # [Nb, length]
    fresh = op.GreaterOrEqual(op.Unsqueeze(row, zero), start)
    share = op.Cast(op.And(member, fresh), to=1)
    first = op.Mul(index, size)
    none = op.Constant(value_int=0)
    before = op.Unsqueeze(op.Min(op.Max(op.Sub(start, first), none), size), one)  # rows in each mean, [Nb, 1]
    after = op.Unsqueeze(op.Min(op.Max(op.Sub(length, first), none), size), one)
    had = op.Cast(before, to=1)
    has = op.Cast(op.Max(after, step), to=1)
    grows = op.Greater(after, before)
    empty = op.Equal(before, none)
    end = op.Reshape(length, one)
    width = op.Mul(op.Shape(k_cache, start=1, end=2), op.Shape(k_cache, start=2, end=3))
    wide = op.Concat(blocks, width, axis=0)
    rows = op.Concat(end, width, axis=0)
    nothing = op.Constant(value_float=0.0)
    k_old = op.Reshape(k_mean, wide)
    k_sum = op.MatMul(share, op.Reshape(op.Cast(op.Slice(k_cache, zero, end, zero), to=1), rows, allowzero=1))
    k_new = op.Div(op.Add(op.Mul(op.Where(empty, nothing, k_old), had), k_sum), has)
    k_mean_next = op.Reshape(op.Where(grows, k_new, k_old), op.Shape(k_mean))
    v_old = op.Reshape(v_mean, wide)
    v_sum = op.MatMul(share, op.Reshape(op.Cast(op.Slice(v_cache, zero, end, zero), to=1), rows, allowzero=1))
    v_new = op.Div(op.Add(op.Mul(op.Where(empty, nothing, v_old), had), v_sum), has)
    v_mean_next = op.Reshape(op.Where(grows, v_new, v_old), op.Shape(v_mean))
    return k_mean_next, v_mean_next


@script(h2o, default_opset=op)
def SubquadraticMask(q, global_rows, length, marks, divisor, window: int, strides: int):
    """What each row sees of the cache and of `marks` complete blocks of `divisor` rows, both [1] → [n, length +
    marks]; see SubquadraticAttention."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    none = op.Constant(value_int=0)
    step = op.Constant(value_int=1)
    n = op.Shape(q, start=0, end=1)
    with_strides = op.Greater(op.Constant(value_int=strides), none)
    row = op.Unsqueeze(op.Range(op.Sub(length, op.Squeeze(n, zero)), length, step), one)  # [n, 1]
    key = op.Unsqueeze(op.Range(none, length, step), zero)  # [1, length]
    distance = op.Sub(row, key)
    past = op.GreaterOrEqual(distance, none)
    power = op.And(
        op.Greater(distance, none), op.Equal(op.BitwiseAnd(distance, op.Sub(distance, step)), none)
    )
    near = op.LessOrEqual(distance, op.Constant(value_int=window))
    is_global = op.Equal(
        op.Unsqueeze(op.Squeeze(key, zero), one), op.Cast(op.Unsqueeze(global_rows, zero), to=7)
    )
    found = op.ReduceSum(op.Cast(is_global, to=7), one, keepdims=0)  # [length]
    anywhere = op.Unsqueeze(op.Greater(found, none), zero)
    sees = op.And(past, op.Or(op.Or(near, anywhere), op.And(with_strides, power)))  # [n, length]
    newest = op.Sub(op.Div(op.Add(row, step), divisor), step)  # [n, 1]
    mark = op.Unsqueeze(op.Range(none, op.Squeeze(marks, zero), step), zero)  # [1, marks]
    gap = op.Sub(newest, mark)
    gap_power = op.And(op.Greater(gap, none), op.Equal(op.BitwiseAnd(gap, op.Sub(gap, step)), none))
    adjacent = op.And(op.GreaterOrEqual(gap, none), op.LessOrEqual(gap, step))
    sees_mark = op.Or(adjacent, op.And(with_strides, gap_power))  # [n, marks]
    visible = op.Concat(sees, sees_mark, axis=1)
    return visible


@script(h2o, default_opset=op)
def SubquadraticAttention(
    q,
    k_cache,
    v_cache,
    k_mean,
    v_mean,
    global_rows,
    length,
    window: int,
    block_size: int,
    strides: int,
    count_bias: int,
    scale: float,
    softcap: float = 0.0,
):
    """Attention of a subquadratic pattern. Row r of q [n, Hq, d] is at i = length - n + r. It sees the
    following in one softmax, each once.

    Of the cache [cap, Hkv, d]: the tokens i - window … i, the global_rows int32 [M] up to i, and with
    `strides` the tokens i - 2^k. Of the landmarks k_mean, v_mean [Nb, Hkv, d], which are means of complete
    blocks: the newest two, and with `strides` those 2^k before the newest. `count_bias` adds ln(block_size)
    to a landmark's score. length int64 scalar ≥ n → o [n, Hq, d].
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    none = op.Constant(value_int=0)
    step = op.Constant(value_int=1)
    n = op.Shape(q, start=0, end=1)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    end = op.Reshape(length, one)
    size = op.Constant(value_int=block_size)
    has_landmarks = op.Greater(size, none)
    divisor = op.Max(size, step)
    full = op.Where(has_landmarks, op.Div(length, divisor), none)  # complete blocks
    marks = op.Reshape(full, one)
    visible = h2o.SubquadraticMask(q, global_rows, length, marks, divisor, window=window, strides=strides)
    keys = op.Concat(
        op.Cast(op.Slice(k_cache, zero, end, zero), to=1), op.Slice(k_mean, zero, marks, zero), axis=0
    )  # [length + marks, Hkv, d]
    values = op.Concat(
        op.Cast(op.Slice(v_cache, zero, end, zero), to=1), op.Slice(v_mean, zero, marks, zero), axis=0
    )
    scores = h2o.HeadScores(q, keys, scale=scale, softcap=softcap)
    total = op.Add(end, marks)
    scores = op.Reshape(scores, op.Concat(kv_heads, minus_one, n, total, axis=0))  # [Hkv, G, n, total]
    counted = op.Greater(op.Constant(value_int=count_bias), none)
    bias = op.Where(counted, op.Log(op.Cast(divisor, to=1)), op.Constant(value_float=0.0))
    shift = op.Concat(
        op.Expand(op.Constant(value_float=0.0), end), op.Expand(bias, marks), axis=0
    )  # [length + marks]
    scores = op.Where(visible, op.Add(scores, shift), op.Constant(value_float=float("-inf")))
    o = h2o.HeadOutputs(op.Softmax(scores, axis=-1), values, q)
    return o
