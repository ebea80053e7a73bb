"""Votes of query tiles for keys, as functions of standard operators: parts of BlockSelect and QuerySelect."""

# mypy reads the bodies as Python, where every value is a union of all tensor types.
# mypy: disable-error-code="type-var,arg-type,no-untyped-def,no-untyped-call,misc"

from __future__ import annotations

from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.values import Opset

from h2o_runtime import operators as table

h2o = Opset(table.DOMAIN, table.VERSION)

# The sampled denominator of docs/algorithm.md, "A vote's probability". The first SAMPLE_STEP places count once. Of
# each SAMPLE_STEP later ones, SAMPLED from number SAMPLE_FIRST on count SAMPLE_WEIGHT times. The kernels' copies
# stand in sample.h and vote_sample.cuh.
SAMPLE_STEP, SAMPLE_FIRST, SAMPLED = 128, 56, 16
SAMPLE_WEIGHT = SAMPLE_STEP / SAMPLED


@script(h2o, default_opset=op)
def VotingRows(q, past, score_heads, votings, tile: int, stride: int):
    """The rows of each tile that vote: of each `stride` rows one for each query head, row j * `stride` // G for
    head j of the G of a score head, or the last row of a shorter rest.

    q [n, Hq, d] in tiles of `tile` rows, the last may be partial; past [t]; score_heads [1] is Hs; votings [1] is
    Hv, a divisor of Hq → sample [t, Hv, w, Hq/Hv, d]; real [t, 1, w, 1, 1]: false behind a tile's last row; place
    int64 [t, Hv, w, Hq/Hv], of a voting row in its tile.
    """
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    first = op.Constant(value_int=0)
    n = op.Shape(q, start=0, end=1)
    query_heads = op.Shape(q, start=1, end=2)
    d = op.Shape(q, start=2, end=3)
    tiles = op.Shape(past, start=0, end=1)
    size = op.Reshape(op.Constant(value_int=tile), one)
    each_tile = op.Range(first, op.Squeeze(tiles, op.Constant(value_ints=[0])), step)
    begin = op.Mul(each_tile, size)
    stop = op.Unsqueeze(op.Min(op.Add(begin, size), n), one)  # [t, 1]
    later = op.Range(first, op.Constant(value_int=tile), op.Constant(value_int=stride))
    run = op.Add(op.Unsqueeze(begin, one), op.Unsqueeze(later, op.Constant(value_ints=[0])))  # [t, w]
    real = op.Unsqueeze(op.Less(run, stop), op.Constant(value_ints=[1, 3, 4]))
    together = op.Div(query_heads, score_heads)
    query_head = op.Range(first, op.Squeeze(query_heads, op.Constant(value_ints=[0])), step)  # [Hq]
    within = op.Div(op.Mul(op.Mod(query_head, together), op.Constant(value_int=stride)), together)
    voter = op.Add(op.Unsqueeze(run, op.Constant(value_ints=[2])), within)
    voter = op.Min(voter, op.Unsqueeze(op.Sub(stop, one), one))  # [t, w, Hq]
    every_query = op.Reshape(op.Cast(q, to=1), op.Concat(minus_one, d, axis=0))
    voting = op.Gather(every_query, op.Add(op.Mul(voter, query_heads), query_head), axis=0)
    by_head = op.Concat(op.Shape(run), votings, minus_one, d, axis=0)
    sample = op.Transpose(op.Reshape(voting, by_head), perm=[0, 2, 1, 3, 4])
    within_tile = op.Sub(voter, op.Unsqueeze(begin, op.Constant(value_ints=[1, 2])))
    of_head = op.Reshape(within_tile, op.Concat(op.Shape(run), votings, minus_one, axis=0))
    place = op.Transpose(of_head, perm=[0, 2, 1, 3])
    return sample, real, place


@script(h2o, default_opset=op)
def SampledVotes(dots, seen, places):
    """Probabilities of scores whose softmax is estimated by a sample: exp(dots - L), at most 1; 0 where not seen.

    dots [..., K]; seen bool, of that shape or one that broadcasts to it; places [1]: of the K, the first `places`
    are sampled. L is the logarithm of the sum of exp(dots), with the sampled denominator; the entries behind all
    places count once.
    """
    minus_one = op.Constant(value_ints=[-1])
    lowest = op.Constant(value_float=float("-inf"))
    none = op.Constant(value_float=0.0)
    step = op.Constant(value_int=SAMPLE_STEP)
    size = op.Squeeze(op.Shape(dots, start=-1), op.Constant(value_ints=[0]))
    place = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    within = op.Mod(place, step)
    middle = op.And(
        op.GreaterOrEqual(within, op.Constant(value_int=SAMPLE_FIRST)),
        op.Less(within, op.Constant(value_int=SAMPLE_FIRST + SAMPLED)),
    )
    whole = op.Or(op.Less(place, step), op.GreaterOrEqual(place, places))
    weight = op.Where(middle, op.Constant(value_float=SAMPLE_WEIGHT), none)
    weight = op.Where(whole, op.Constant(value_float=1.0), weight)  # [K]
    counted = op.Where(op.And(seen, op.Greater(weight, none)), dots, lowest)
    top = op.Max(op.ReduceMax(counted, minus_one, keepdims=1), op.Constant(value_float=-3.0e38))
    total = op.ReduceSum(op.Mul(op.Exp(op.Sub(counted, top)), weight), minus_one, keepdims=1)
    above = op.Sub(dots, op.Add(top, op.Log(total)))
    return op.Where(seen, op.Exp(op.Min(above, none)), none)


@script(h2o, default_opset=op)
def BlockVotes(
    q, k_cache, past, scale: float, tile: int, stride: int, block_size: int, score_heads: int, softcap: float
):
    """The votes of query tiles for the blocks below their past, float32 [t, Hs, Nb + 1]: see BlockSelect. The last
    place is for rows that no whole block of the cache has.
    """
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    first = op.Constant(value_int=0)
    none = op.Constant(value_float=0.0)
    size = op.Constant(value_int=block_size)
    capacity = op.Shape(k_cache, start=0, end=1)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    d = op.Shape(k_cache, start=2, end=3)
    tiles = op.Shape(past, start=0, end=1)
    sets = op.Reshape(op.Constant(value_int=score_heads), one)
    spanned = op.Max(op.Div(kv_heads, sets), one)  # key/value heads of a score head
    votings = op.Mul(sets, spanned)  # Hv = max(Hs, Hkv)
    sample, real, place = h2o.VotingRows(q, past, sets, votings, tile=tile, stride=stride)
    # Means and variances of the blocks' keys.
    blocks = op.Div(capacity, size)
    whole = op.Slice(op.Cast(k_cache, to=1), zero, op.Mul(blocks, size), zero)
    by_block = op.Reshape(whole, op.Concat(blocks, op.Reshape(size, one), kv_heads, d, axis=0), allowzero=1)
    means = op.ReduceMean(by_block, one, keepdims=0)  # [Nb, Hkv, d]
    apart = op.Sub(by_block, op.Unsqueeze(means, one))
    variances = op.ReduceMean(op.Mul(apart, apart), one, keepdims=0)
    moments = op.Concat(means, variances, axis=2)  # [Nb, Hkv, 2d]
    heads = op.Div(op.Range(first, op.Squeeze(votings, zero), step), op.Div(votings, kv_heads))  # [Hv]
    keys = op.Transpose(op.Gather(moments, heads, axis=1), perm=[1, 2, 0])  # [Hv, 2d, Nb]
    # A tile whose past has no whole block gives no votes.
    packed = op.Reshape(sample, op.Concat(tiles, votings, minus_one, d, axis=0))
    factor = op.Constant(value_float=scale)
    squared = op.Mul(op.Mul(packed, packed), op.Mul(factor, op.Constant(value_float=0.5)))
    dots = op.Mul(op.MatMul(op.Concat(packed, squared, axis=3), keys), factor)
    dots = h2o.SoftCap(dots, softcap=softcap)
    block = op.Range(first, op.Squeeze(blocks, zero), step)
    end = op.Reshape(past, op.Constant(value_ints=[-1, 1, 1]))
    seen = op.Unsqueeze(op.Less(block, op.Div(end, size)), one)  # [t, 1, 1, Nb]
    votes = h2o.SampledVotes(dots, seen, blocks)
    by_vote = op.Concat(op.Shape(sample, start=0, end=4), blocks, axis=0)
    counted = op.Where(real, op.Reshape(votes, by_vote, allowzero=1), none)
    of_each = op.ReduceSum(counted, op.Constant(value_ints=[2, 3]), keepdims=0)  # [t, Hv, Nb]
    split = op.Reshape(of_each, op.Concat(tiles, sets, spanned, blocks, axis=0), allowzero=1)
    got = op.ReduceSum(split, op.Constant(value_ints=[2]), keepdims=0)  # [t, Hs, Nb]
    got = op.Where(op.Less(got, op.Constant(value_float=1e-30)), none, got)
    return op.Concat(got, op.Expand(none, op.Concat(tiles, sets, one, axis=0)), axis=2)


@script(h2o, default_opset=op)
def QueryVotes(q, k_cache, rows, past, first, scale: float, tile: int, stride: int, softcap: float):
    """The votes of query tiles for cache rows [t, Hs, K], float32 [t, Hs, K]: see QuerySelect."""
    zero = op.Constant(value_ints=[0])
    one = op.Constant(value_ints=[1])
    minus_one = op.Constant(value_ints=[-1])
    step = op.Constant(value_int=1)
    none = op.Constant(value_int=0)
    d = op.Shape(q, start=2, end=3)
    tiles = op.Shape(past, start=0, end=1)
    kv_heads = op.Shape(k_cache, start=1, end=2)
    score_heads = op.Shape(rows, start=1, end=2)
    spanned = op.Max(op.Div(kv_heads, score_heads), one)  # key/value heads of a score head
    votings = op.Mul(score_heads, spanned)  # Hv = max(Hs, Hkv)
    sample, real, place = h2o.VotingRows(q, past, score_heads, votings, tile=tile, stride=stride)
    shared = op.Unsqueeze(rows, op.Constant(value_ints=[2]))
    shared = op.Expand(shared, op.Concat(one, one, spanned, one, axis=0))
    looked_at = op.Reshape(shared, op.Concat(tiles, votings, minus_one, axis=0))  # [t, Hv, K]
    # The rows from past on that some row of the tile sees, [t, W].
    before = op.Sub(first, past)  # rows of the chunk before the tile
    most = op.Add(op.ReduceMax(before, keepdims=0), op.Constant(value_int=tile))
    own = op.Range(none, most, step)
    last = op.Sub(op.Shape(k_cache, start=0, end=1), one)
    own_rows = op.Min(op.Add(op.Unsqueeze(past, one), own), last)
    own_rows = op.Expand(op.Unsqueeze(own_rows, one), op.Concat(one, votings, one, axis=0))  # [t, Hv, W]
    heads = op.Range(none, op.Squeeze(votings, zero), step)
    head = op.Unsqueeze(op.Div(heads, op.Div(votings, kv_heads)), one)  # [Hv, 1]
    flat = op.Reshape(op.Cast(k_cache, to=1), op.Concat(minus_one, d, axis=0))
    every_key = op.Add(op.Mul(op.Concat(looked_at, own_rows, axis=2), kv_heads), head)
    keys = op.Gather(flat, every_key, axis=0)  # [t, Hv, K + W, d]
    # Their scores.
    packed = op.Reshape(sample, op.Concat(tiles, votings, minus_one, d, axis=0))
    dots = op.Mul(op.MatMul(packed, op.Transpose(keys, perm=[0, 1, 3, 2])), op.Constant(value_float=scale))
    dots = h2o.SoftCap(dots, softcap=softcap)
    end = op.Reshape(past, op.Constant(value_ints=[-1, 1, 1]))
    voter = op.Reshape(place, op.Concat(tiles, votings, minus_one, one, axis=0))
    voter = op.Add(voter, op.Reshape(before, op.Constant(value_ints=[-1, 1, 1, 1])))
    of_own = op.LessOrEqual(own, voter)  # [t, Hv, votes, W]
    of_past = op.Unsqueeze(op.Less(looked_at, end), op.Constant(value_ints=[2]))
    of_past = op.Expand(of_past, op.Concat(op.Shape(voter, end=3), one, axis=0))
    looked = op.Shape(looked_at, start=2, end=3)  # [K]
    votes = h2o.SampledVotes(dots, op.Concat(of_past, of_own, axis=3), looked)
    votes = op.Slice(votes, op.Constant(value_ints=[0]), looked, op.Constant(value_ints=[3]))
    by_vote = op.Concat(op.Shape(sample, start=0, end=4), minus_one, axis=0)
    counted = op.Where(real, op.Reshape(votes, by_vote), op.Constant(value_float=0.0))
    of_each = op.ReduceSum(counted, op.Constant(value_ints=[2, 3]), keepdims=0)  # [t, Hv, K]
    split = op.Reshape(of_each, op.Concat(tiles, score_heads, spanned, minus_one, axis=0))
    return op.ReduceSum(split, op.Constant(value_ints=[2]), keepdims=0)
