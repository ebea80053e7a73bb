"""The operators of page selection, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def PageBounds(k_cache, k_min, k_max, start, length, page_size: int):
    """Update the minimum and maximum keys of pages with the rows start … length - 1; rows before `start` are
    already included.

    k_cache [cap, Hkv, d]; k_min, k_max float32 [Nb, Hkv, d], page b begins at row b·page_size; start, length
    int64 scalars → k_min_next, k_max_next. The first row of a page overwrites the old values.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    size = op.Constant(value_int=page_size)
    pages = op.Shape(k_min, start=0, end=1)
    rows = op.Mul(op.Squeeze(pages, zero), size)  # as many rows as the pages have
    row = op.Range(none, rows, step)
    fresh = op.And(op.GreaterOrEqual(row, start), op.Less(row, length))
    # The last page may extend past the cache: those rows repeat the cache's last row and are not fresh.
    last = op.Sub(op.Squeeze(op.Shape(k_cache, start=0, end=1), zero), step)
    keys = op.Cast(op.Gather(k_cache, op.Min(row, last), axis=0), to=1)
    paged = op.Concat(pages, op.Reshape(size, one), op.Shape(k_cache, start=1, end=3), axis=0)
    wide = op.Unsqueeze(fresh, op.Constant(value_ints=[1, 2]))
    low = op.Reshape(op.Where(wide, keys, op.Constant(value_float=float("inf"))), paged)
    high = op.Reshape(op.Where(wide, keys, op.Constant(value_float=float("-inf"))), paged)
    first = op.Mul(op.Range(none, op.Squeeze(pages, zero), step), size)
    known = op.Unsqueeze(op.Less(first, start), op.Constant(value_ints=[1, 2]))
    new = op.Unsqueeze(
        op.And(op.GreaterOrEqual(first, start), op.Less(first, length)), op.Constant(value_ints=[1, 2])
    )
    low_old = op.Where(known, k_min, op.Constant(value_float=float("inf")))
    high_old = op.Where(known, k_max, op.Constant(value_float=float("-inf")))
    low_new = op.Min(low_old, op.ReduceMin(low, one, keepdims=0))
    high_new = op.Max(high_old, op.ReduceMax(high, one, keepdims=0))
    touched = op.Or(known, new)
    k_min_next = op.Where(touched, low_new, k_min)
    k_max_next = op.Where(touched, high_new, k_max)
    return k_min_next, k_max_next


@script(h2o, default_opset=op)
def PageSelect(q, k_min, k_max, length, page_size: int, budget: int, score_heads: int):
    """For one token, select the last page and the budget - 1 other pages whose keys may score highest.

    q [1, Hq, d]; k_min, k_max [Nb, Hkv, d]; length int64 scalar → page_list int32 [Hs, budget], rising; -1
    fills unused entries. The bound of a page is the sum over channels of max(q·k_min, q·k_max); none of its
    keys scores higher. A set uses the bound of its best query head. Ties go to the lower page.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    size = op.Constant(value_int=page_size)
    pages = op.Div(op.Add(length, op.Sub(size, step)), size)
    end = op.Reshape(pages, one)
    d = op.Shape(q, start=2, end=3)
    kv_heads = op.Shape(k_min, start=1, end=2)
    packed = op.Reshape(op.Cast(q, to=1), op.Concat(kv_heads, minus_one, d, axis=0))  # [Hkv, G, d]
    nothing = op.Constant(value_float=0.0)
    low = op.Transpose(op.Slice(k_min, zero, end, zero), perm=[1, 2, 0])  # [Hkv, d, pages]
    high = op.Transpose(op.Slice(k_max, zero, end, zero), perm=[1, 2, 0])
    upper = op.Add(op.MatMul(op.Max(packed, nothing), high), op.MatMul(op.Min(packed, nothing), low))
    sets = op.Reshape(op.Constant(value_int=score_heads), one)
    bound = op.ReduceMax(
        op.Reshape(upper, op.Concat(sets, minus_one, end, axis=0)), one, keepdims=0
    )  # [Hs, pages]
    index = op.Range(none, pages, step)
    is_last = op.Unsqueeze(op.Equal(index, op.Sub(pages, step)), zero)
    ranks = op.Where(is_last, op.Constant(value_float=float("inf")), bound)
    page_list = h2o.HighestRising(ranks, op.Constant(value_int=budget))
    return page_list


@script(h2o, default_opset=op)
def PageAttention(q, k_cache, v_cache, page_list, length, page_size: int, scale: float, softcap: float = 0.0):
    """One token's attention to the rows of listed pages that lie below `length`; an entry of -1 has none.

    q [1, Hq, d]; k_cache, v_cache [cap, Hkv, d]; page_list int32 [Hs, M]; length int64 scalar → o [1, Hq, d].
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    size = op.Constant(value_int=page_size)
    sets = op.Shape(page_list, start=0, end=1)
    end = op.Reshape(length, one)
    page = op.Div(op.Range(none, length, step), size)  # [length]
    wide_list = op.Cast(op.Unsqueeze(page_list, op.Constant(value_ints=[2])), to=7)
    hits = op.Cast(op.Equal(wide_list, op.Unsqueeze(page, op.Constant(value_ints=[0, 1]))), to=7)
    seen = op.Greater(op.ReduceSum(hits, one, keepdims=0), none)  # [Hs, length]
    keys = op.Cast(op.Slice(k_cache, zero, end, zero), to=1)
    values = op.Cast(op.Slice(v_cache, zero, end, zero), to=1)
    scores = h2o.HeadScores(q, keys, scale=scale, softcap=softcap)  # [Hkv, G, length]
    by_set = op.Reshape(scores, op.Concat(sets, minus_one, end, axis=0))
    hidden = op.Constant(value_float=float("-inf"))
    visible = op.Where(op.Unsqueeze(seen, one), by_set, hidden)
    o = h2o.HeadOutputs(op.Reshape(op.Softmax(visible, axis=-1), op.Shape(scores)), values, q)
    return o
