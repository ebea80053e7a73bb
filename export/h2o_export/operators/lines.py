"""The operators of vertical-slash attention, as functions of standard operators; see h2o_export.operators."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)


@script(h2o, default_opset=op)
def VerticalSlashSelect(
    q, k_cache, length, scale: float, vertical: int, slash: int, sink: int, near: int, softcap: float = 0.0
):
    """The columns and the diagonals on which some queries' probabilities lie.

    q [n, Hq, d] are the last n rows below `length`, an int64 scalar, of k_cache [cap, Hkv, d]. → columns
    int32 [Hq, vertical]: the keys with the highest sums over the queries, always including those below
    `sink`. distances int32 [Hq, slash], from a query back to a key: the same for diagonals, always including
    those below `near`. Both rise; -1 fills unused entries. Sums below 1e-30 count as 0, and ties go to the
    lower number.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    n = op.Shape(q, start=0, end=1)
    end = op.Reshape(length, one)
    keys = op.Cast(op.Slice(k_cache, zero, end, zero), to=1)
    scores = h2o.HeadScores(q, keys, scale=scale, softcap=softcap)
    row = op.Unsqueeze(op.Range(op.Sub(length, op.Squeeze(n, zero)), length, step), one)  # [n, 1]
    key = op.Unsqueeze(op.Range(none, length, step), zero)  # [1, length]
    back = op.Sub(row, key)  # the key at a distance, or the distance of a key
    past = op.GreaterOrEqual(back, none)  # [n, length]
    by_head = op.Reshape(scores, op.Concat(op.Shape(q, start=1, end=2), n, end, axis=0))
    p = op.Softmax(op.Where(past, by_head, op.Constant(value_float=float("-inf"))), axis=-1)
    by_column = op.ReduceSum(p, one, keepdims=0)  # [Hq, length]
    at = op.Expand(op.Max(back, none), op.Shape(p))
    turned = op.GatherElements(p, at, axis=2)  # [Hq, n, length] by distance
    nothing = op.Constant(value_float=0.0)
    by_distance = op.ReduceSum(op.Where(past, turned, nothing), one, keepdims=0)

    negligible = op.Constant(value_float=1e-30)
    first = op.Constant(value_float=float("inf"))
    column_sums = op.Where(op.GreaterOrEqual(by_column, negligible), by_column, nothing)
    column_ranks = op.Where(op.Less(key, op.Constant(value_int=sink)), first, column_sums)
    columns = h2o.HighestRising(column_ranks, op.Constant(value_int=vertical))
    distance_sums = op.Where(op.GreaterOrEqual(by_distance, negligible), by_distance, nothing)
    distance_ranks = op.Where(op.Less(key, op.Constant(value_int=near)), first, distance_sums)
    distances = h2o.HighestRising(distance_ranks, op.Constant(value_int=slash))
    return columns, distances


@script(h2o, default_opset=op)
def DiagonalBlocks(q, distances, length):
    """The blocks of keys along the diagonals that each row sees → [Hq, n, length]; see VerticalSlashAttention."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    tile = op.Constant(value_int=64)
    far = op.Constant(value_int=-(2**40))
    heads = op.Shape(q, start=1, end=2)
    end = op.Reshape(length, one)
    count = op.Squeeze(op.Shape(q, start=0, end=1), zero)
    tiles = op.Div(op.Add(count, op.Sub(tile, step)), tile)
    past = op.Sub(length, count)
    stops = op.Add(past, op.Mul(op.Add(op.Range(none, tiles, step), step), tile))  # [tiles]

    # The end of each diagonal's block, from the largest distance to 0: [D + 1, Hq, tiles]
    falling = op.Slice(
        op.Cast(distances, to=7), minus_one, op.Constant(value_ints=[-(2**31)]), one, minus_one
    )
    listed = op.Concat(falling, op.Expand(zero, op.Concat(heads, one, axis=0)), axis=1)
    distance = op.Unsqueeze(op.Transpose(listed, perm=[1, 0]), two)
    reach = op.Sub(stops, distance)
    there = op.And(op.GreaterOrEqual(distance, none), op.Greater(reach, none))
    block_ends = op.Where(there, op.Max(reach, tile), far)

    @graph()
    def join(before, block_end):
        """The end of the run so far, and the end of the block that this diagonal adds."""
        size = op.Constant(value_int=64)
        further = op.Add(before, size)
        begins = op.Greater(block_end, further)
        extends = op.Greater(block_end, before)
        after = op.Where(begins, block_end, op.Where(extends, further, before))
        added = op.Identity(after)
        return after, added

    start = op.Expand(op.Constant(value_int=-(2**20)), op.Concat(heads, op.Reshape(tiles, one), axis=0))
    last_run, added_ends = op.Scan(start, block_ends, body=join, num_scan_inputs=1)

    # +1 where a block begins and -1 where it ends: their running sum is positive inside blocks.
    ends = op.Transpose(added_ends, perm=[1, 2, 0])  # [Hq, tiles, D + 1]
    width = op.Add(end, op.Constant(value_ints=[128]))
    empty = op.Expand(none, op.Concat(heads, op.Reshape(tiles, one), width, axis=0))
    ones = op.Expand(step, op.Shape(ends))
    begun = op.ScatterElements(empty, op.Max(op.Sub(ends, tile), none), ones, axis=2, reduction="add")
    ended = op.ScatterElements(begun, op.Max(ends, none), op.Neg(ones), axis=2, reduction="add")
    covered = op.Greater(op.CumSum(ended, op.Constant(value_int=2)), none)  # [Hq, tiles, width]
    by_tile = op.Slice(covered, zero, end, two)
    along = op.Gather(by_tile, op.Div(op.Range(none, count, step), tile), axis=1)  # [Hq, n, length]
    return along


@script(h2o, default_opset=op)
def VerticalSlashAttention(
    q, k_cache, v_cache, columns, distances, length, scale: float, softcap: float = 0.0
):
    """Attention to some columns and to blocks of keys along some diagonals, in tiles of 64 rows.

    Row r of q [n, Hq, d] is at length - n + r; row 0 begins a tile. It sees, up to itself, the keys `columns`
    int32 [Hq, M] of the cache [cap, Hkv, d] and the blocks of its tile. For a tile with end e and each s < e
    of `distances` int32 [Hq, D], and for s = 0, the block is the 64 keys before max(e - s, 64). Blocks are
    taken from the largest distance on. A block that begins inside or at the end of the current run extends
    the run by 64 if it reaches further. Both lists rise; an entry of -1 is unused. length int64 scalar ≥ n →
    o [n, Hq, d].
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    n = op.Shape(q, start=0, end=1)
    heads = op.Shape(q, start=1, end=2)
    end = op.Reshape(length, one)
    row = op.Unsqueeze(op.Range(op.Sub(length, op.Squeeze(n, zero)), length, step), one)  # [n, 1]
    key = op.Unsqueeze(op.Range(none, length, step), zero)  # [1, length]
    along = h2o.DiagonalBlocks(q, distances, length)  # [Hq, n, length]

    named = op.Cast(columns, to=7)
    place = op.Where(op.Or(op.Less(named, none), op.GreaterOrEqual(named, length)), length, named)
    row_of_places = op.Expand(none, op.Concat(heads, op.Add(end, one), axis=0))
    marked = op.ScatterElements(row_of_places, place, op.Expand(step, op.Shape(place)), axis=1)
    column = op.Unsqueeze(op.Greater(op.Slice(marked, zero, end, one), none), one)  # [Hq, 1, length]
    seen = op.And(op.LessOrEqual(key, row), op.Or(along, column))

    keys = op.Cast(op.Slice(k_cache, zero, end, zero), to=1)
    values = op.Cast(op.Slice(v_cache, zero, end, zero), to=1)
    scores = h2o.HeadScores(q, keys, scale=scale, softcap=softcap)
    by_head = op.Reshape(scores, op.Concat(heads, n, end, axis=0))
    p = op.Softmax(op.Where(seen, by_head, op.Constant(value_float=float("-inf"))), axis=-1)
    o = h2o.HeadOutputs(p, values, q)
    return o
