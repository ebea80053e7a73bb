"""The table of the operators of ONNX domain `h2o`, version 1: names, tensors, shapes and attributes.

All other code that names an operator's tensors comes from this table. When kernels, Python modules and
TensorRT plugins are built, `plugins/kernels/generate.py` writes their C++ header; the attention providers
read the table itself. The ONNX bodies are in `h2o_export`. Sizes have the names they have everywhere:

    n tokens in this call, w of them that vote, Hq query heads, Hkv key/value heads, Hs score heads: Hkv or
    Hq, or in some operators a number that divides Hkv, Hl lists of candidates, each of Hs / Hl score heads, d
    head size of queries and keys, dv that of values and outputs (operators of landmarks, pages and lines want
    d), cap cache capacity, M memory slots, Mp slots of the memory before (may be 0) or of a list, R rows that
    have scores, t tiles of queries, Nb blocks of the cache's rows (blocks of landmarks, or pages), D
    diagonals, K numbers of a row of a dense graph, r pairs of a head's numbers that are rotated.

A tensor of dtype T is float32 or float16; all tensors of a node have the same. This module imports only
`operator_spec` and `dense_operators` from the package, because builds run it as a file.
"""

from __future__ import annotations

from dataclasses import replace

from h2o_runtime.dense_operators import DENSE_OPERATORS as DENSE_OPERATORS  # the table has all operators
from h2o_runtime.operator_spec import (
    Attribute,
    Operator,
    TensorArgument,
    float_tensor,
    int32_tensor,
    int64_tensor,
    model_tensor,
)

DOMAIN, VERSION = "h2o", 1

KEYS, VALUES, LENGTH = "k_cache", "v_cache", "length"  # the tensors of a `KV`


_SCALE = Attribute("scale", of_model=True)  # of the dot products
_SOFTCAP = Attribute("softcap", of_model=True, default=0)  # what a tanh keeps scores below; 0: nothing
_WINDOW = Attribute("window", 0, of_model=True, default=0)  # keys that a row sees, back from its own; 0: all
_TILE, _STRIDE = Attribute("tile", 1, tiles="t"), Attribute("stride", 1)
_LOCAL, _HEAVY = Attribute("local", 0, gives="M"), Attribute("heavy", 0, gives="M")
_SCORE_HEADS = Attribute("score_heads", 1, gives="Hs")
_Q, _O = model_tensor("q", "n Hq d"), model_tensor("o", "n Hq dv")
_Q1, _O1 = model_tensor("q", "1 Hq d"), model_tensor("o", "1 Hq dv")  # of one token
_M, _L = float_tensor("m", "n Hq"), float_tensor("l", "n Hq")
_CACHES = (model_tensor("k_cache", "cap Hkv d"), model_tensor("v_cache", "cap Hkv dv"))
_GATHERED = (model_tensor("k_mem", "Hs M d"), model_tensor("v_mem", "Hs M dv"))
_LANDMARKS = (float_tensor("k_mean", "Nb Hkv d"), float_tensor("v_mean", "Nb Hkv dv"))
_NEW_CACHES = tuple(replace(cache, updated=True) for cache in _CACHES)
_LENGTH = int64_tensor("length", "")
_MEMORY, _COLSUM = int32_tensor("memory", "Hs M"), float_tensor("colsum", "Hs M")


def _state(suffix: str) -> tuple[TensorArgument, ...]:
    return (
        model_tensor(f"o_{suffix}", "n Hq dv"),
        float_tensor(f"m_{suffix}", "n Hq"),
        float_tensor(f"l_{suffix}", "n Hq"),
    )


# The state that a memory set's pass is fused with. If `o` is `o_intra`, m_intra and l_intra become the fused
# ones.
_INTRA = (_state("intra")[0], *(replace(each, updated=True) for each in _state("intra")[1:]))
_FUSED = replace(_O, in_place="o_intra")


def _next(*tensors: TensorArgument) -> tuple[TensorArgument, ...]:
    return tuple(replace(each, name=f"{each.name}_next", in_place=each.name) for each in tensors)


CHUNKED_INTRA_ATTENTION = Operator(
    "ChunkedIntraAttention",
    inputs=(_Q, model_tensor("k", "n Hkv d"), model_tensor("v", "n Hkv dv")),
    outputs=(_O, _M, _L, replace(float_tensor("colsum", "n Hs"), optional=True)),
    attributes=(Attribute("chunk_size", 1), _SCALE, _SCORE_HEADS, _SOFTCAP),
    sinks=True,
)
# Kernels for the CPU are those that a schedule calls; there MemoryFusedAttention and CachedCandidateScore stand
# for these four.
MEMORY_GATHER = Operator("MemoryGather", inputs=(*_CACHES, _MEMORY), outputs=_GATHERED, kernels=("cuda",))
MEMORY_ATTENTION = Operator(
    "MemoryAttention",
    inputs=(_Q, *_GATHERED),
    outputs=(_O, _M, _L, replace(_COLSUM, optional=True)),
    attributes=(_SCALE, _SOFTCAP),
    kernels=("cuda",),
)
ONLINE_SOFTMAX_FUSION = Operator(
    "OnlineSoftmaxFusion",
    inputs=(*_state("a"), *_state("b")),
    outputs=(_O, _M, _L),
    kernels=("cuda",),
)
MEMORY_FUSED_ATTENTION = Operator(
    "MemoryFusedAttention",
    inputs=(_Q, *_CACHES, _MEMORY, *_INTRA),
    outputs=(_FUSED, replace(_COLSUM, optional=True)),
    attributes=(_SCALE, _SOFTCAP),
)
CANDIDATE_SCORE = Operator(
    "CandidateScore",
    inputs=(
        model_tensor("q_window", "w Hq d"),
        model_tensor("k", "n Hkv d"),
        model_tensor("k_mem", "Hs M d"),
    ),
    outputs=(float_tensor("score_mem", "Hs M"), float_tensor("score_chunk", "n Hs")),
    attributes=(_SCALE, _SOFTCAP),
    kernels=("cuda",),
)
MEMORY_SELECT = Operator(
    "MemorySelect",
    inputs=(
        float_tensor("score", "cap Hs"),
        int32_tensor("memory", "Hs Mp"),
        int64_tensor("chunk_range", "2"),
    ),
    outputs=(int32_tensor("memory_next", "Hs M"),),
    attributes=(_LOCAL, _HEAVY),
)
BLOCK_SELECT = Operator(  # QuerySelect's candidates, by blocks of keys
    "BlockSelect",
    inputs=(_Q, _CACHES[0], int64_tensor("past", "t")),
    outputs=(int32_tensor("candidates", "t Hs M"),),
    attributes=(_SCALE, _TILE, _STRIDE, Attribute("block_size", 1), _LOCAL, _HEAVY, _SCORE_HEADS, _SOFTCAP),
    plugin=False,
)
QUERY_SELECT = Operator(
    "QuerySelect",
    inputs=(
        _Q,
        _CACHES[0],
        int32_tensor("candidates", "t Hl Mp"),
        int64_tensor("past", "t"),
        int64_tensor("first", "t"),
    ),
    outputs=(int32_tensor("memory_next", "t Hs M"),),
    attributes=(_SCALE, _TILE, _STRIDE, Attribute("reach", 0), _LOCAL, _HEAVY, _SCORE_HEADS, _SOFTCAP),
)
CACHED_ATTENTION = Operator(
    "CachedAttention",
    inputs=(_Q, *_CACHES, _LENGTH),
    outputs=(_O,),
    attributes=(_SCALE, _WINDOW, _SOFTCAP),
    sinks=True,
)
LANDMARK_UPDATE = Operator(
    "LandmarkUpdate",
    inputs=(*_CACHES, *_LANDMARKS, int64_tensor("start", ""), _LENGTH),
    outputs=_next(*_LANDMARKS),
    attributes=(Attribute("block_size", 1),),
    kernels=("cpu",),
    plugin=False,
)
SUBQUADRATIC_ATTENTION = Operator(
    "SubquadraticAttention",
    inputs=(_Q, *_CACHES, *_LANDMARKS, int32_tensor("global_rows", "M"), _LENGTH),
    outputs=(_O,),
    attributes=(
        Attribute("window", 0),
        Attribute("block_size", 0),
        Attribute("strides", 0),
        Attribute("count_bias", 0),
        _SCALE,
        _SOFTCAP,
    ),
    kernels=("cpu",),
    plugin=False,
)
_BOUNDS = (float_tensor("k_min", "Nb Hkv d"), float_tensor("k_max", "Nb Hkv d"))
_PAGE_SIZE, _PAGE_LIST = Attribute("page_size", 1), int32_tensor("page_list", "Hs M")
PAGE_BOUNDS = Operator(
    "PageBounds",
    inputs=(_CACHES[0], *_BOUNDS, int64_tensor("start", ""), _LENGTH),
    outputs=_next(*_BOUNDS),
    attributes=(_PAGE_SIZE,),
    plugin=False,
)
PAGE_SELECT = Operator(
    "PageSelect",
    inputs=(_Q1, *_BOUNDS, _LENGTH),
    outputs=(_PAGE_LIST,),
    attributes=(_PAGE_SIZE, Attribute("budget", 1, gives="M"), _SCORE_HEADS),
    plugin=False,
)
PAGE_ATTENTION = Operator(
    "PageAttention",
    inputs=(_Q1, *_CACHES, _PAGE_LIST, _LENGTH),
    outputs=(_O1,),
    attributes=(_PAGE_SIZE, _SCALE, _SOFTCAP),
    plugin=False,
)
_LINES = (int32_tensor("columns", "Hq M"), int32_tensor("distances", "Hq D"))
VERTICAL_SLASH_SELECT = Operator(
    "VerticalSlashSelect",
    inputs=(_Q, _CACHES[0], _LENGTH),
    outputs=_LINES,
    attributes=(
        _SCALE,
        Attribute("vertical", 1, gives="M"),
        Attribute("slash", 1, gives="D"),
        Attribute("sink", 0),
        Attribute("near", 0),
        _SOFTCAP,
    ),
    kernels=("cpu",),
    plugin=False,
)
VERTICAL_SLASH_ATTENTION = Operator(
    "VerticalSlashAttention",
    inputs=(_Q, *_CACHES, *_LINES, _LENGTH),
    outputs=(_O,),
    attributes=(_SCALE, _SOFTCAP),
    kernels=("cpu",),
    plugin=False,
)

GATED_DELTA = Operator(  # of layers with a state in place of a cache: Hq heads of values, Hkv of keys
    "GatedDelta",
    inputs=(
        _Q,
        model_tensor("k", "n Hkv d"),
        model_tensor("v", "n Hq dv"),
        float_tensor("decay", "n Hq"),
        float_tensor("beta", "n Hq"),
        float_tensor("state", "Hq d dv"),
    ),
    outputs=(_O, replace(float_tensor("state_next", "Hq d dv"), in_place="state")),
    attributes=(_SCALE,),
    plugin=False,
)

# Of layers with a state in place of a cache: Hq heads, Hkv groups of heads that share b and c.
MAMBA2 = Operator(
    "Mamba2",
    inputs=(
        model_tensor("x", "n Hq dv"),
        model_tensor("b", "n Hkv d"),
        model_tensor("c", "n Hkv d"),
        *(float_tensor(name, "n Hq") for name in ("decay", "step", "skip")),
        GATED_DELTA.inputs[-1],
    ),
    outputs=GATED_DELTA.outputs,
    plugin=False,
)

OPERATORS = (  # an operator that another body calls comes before it
    CHUNKED_INTRA_ATTENTION,
    MEMORY_GATHER,
    MEMORY_ATTENTION,
    ONLINE_SOFTMAX_FUSION,
    MEMORY_FUSED_ATTENTION,
    CANDIDATE_SCORE,
    MEMORY_SELECT,
    BLOCK_SELECT,
    QUERY_SELECT,
    CACHED_ATTENTION,
    LANDMARK_UPDATE,
    SUBQUADRATIC_ATTENTION,
    PAGE_BOUNDS,
    PAGE_SELECT,
    PAGE_ATTENTION,
    VERTICAL_SLASH_SELECT,
    VERTICAL_SLASH_ATTENTION,
    GATED_DELTA,
    MAMBA2,
)

# Operators that only the runtime calls: no graph contains one, and none has a body.
# `providers/host_operators.py` executes them for providers without a kernel.
TILED_MEMORY_ATTENTION = Operator(  # MemoryFusedAttention of tiles of rows, each with its own memory set
    "TiledMemoryAttention",
    inputs=(_Q, *_CACHES, int32_tensor("memory", "t Hs M"), *_INTRA),
    outputs=(_FUSED,),
    attributes=(_SCALE, _TILE, _SOFTCAP),
)
CACHED_CANDIDATE_SCORE = Operator(  # CandidateScore whose memory set is read from the cache
    "CachedCandidateScore",
    inputs=(*CANDIDATE_SCORE.inputs[:2], _CACHES[0], _MEMORY),
    outputs=CANDIDATE_SCORE.outputs,
    attributes=(_SCALE, _SOFTCAP),
)
MEMORY_STEP = Operator(  # the end of a chunk: ScatterScores of values, if there are any, then MemorySelect
    "MemoryStep",
    inputs=(
        replace(MEMORY_SELECT.inputs[0], updated=True),
        MEMORY_SELECT.inputs[1],
        replace(float_tensor("values", "Hs Mp"), optional=True),
    ),
    outputs=(
        *MEMORY_SELECT.outputs,
        replace(int32_tensor("last", "Hs M"), optional=True),  # copies of memory_next
        replace(int32_tensor("boundary", "Hs M"), optional=True),
        replace(float_tensor("scores", "Hs M"), optional=True),  # of the rows in memory_next
    ),
    attributes=(Attribute("add", 0), Attribute("start", 0), Attribute("stop", 0), *MEMORY_SELECT.attributes),
    kernels=("cuda",),
)
SCATTER_SCORES = Operator(  # score at rows `memory` becomes or grows by values; a head's rows are distinct
    "ScatterScores",
    inputs=(replace(MEMORY_SELECT.inputs[0], updated=True), _MEMORY, float_tensor("values", "Hs M")),
    attributes=(Attribute("add", 0),),
    kernels=("cuda",),
)
CACHE_APPEND = Operator(  # rows from `first` on become k and v; with `at`, one row at that position
    "CacheAppend",
    inputs=(
        model_tensor("k", "n Hkv d"),
        replace(model_tensor("v", "n Hkv dv"), optional=True),  # absent if values are stored in keys
        *_NEW_CACHES,
        replace(int64_tensor("at", ""), optional=True),
    ),
    attributes=(Attribute("first", 0),),
)
STEP_ATTENTION = Operator(  # CacheAppend of a row at length - 1, and CachedAttention of it
    "StepAttention",
    inputs=(
        _Q1,
        model_tensor("k", "1 Hkv d"),
        replace(model_tensor("v", "1 Hkv dv"), optional=True),
        *_NEW_CACHES,
        _LENGTH,
    ),
    outputs=(_O1,),
    attributes=(_SCALE, _WINDOW, _SOFTCAP),
    sinks=True,
)
# StepAttention of rows of any sequences: row i at lengths[i] - 1 of its own cache.
STEP_ROWS_ATTENTION = Operator(
    "StepRowsAttention",
    inputs=(
        _Q,
        model_tensor("k", "n Hkv d"),
        model_tensor("v", "n Hkv dv"),
        *_NEW_CACHES,  # of one of them: all have its capacity and its format
        int64_tensor("lengths", "n"),
        int64_tensor("caches", "n 8"),  # an h2o_kv each, of device memory
    ),
    outputs=(_O,),
    attributes=STEP_ATTENTION.attributes,
    kernels=("cuda",),
    sinks=True,
)
PARTIAL_ATTENTION = Operator(  # CachedAttention that tells the state of its softmax
    "PartialAttention",
    inputs=CACHED_ATTENTION.inputs,
    outputs=(_O, _M, _L),
    attributes=CACHED_ATTENTION.attributes,
    kernels=("cpu",),
)
# CachedAttention of a prompt's rows, with the same arithmetic for any number of them.
PROMPT_ATTENTION = Operator(
    "PromptAttention",
    inputs=CACHED_ATTENTION.inputs,
    outputs=(_O, replace(_M, optional=True), replace(_L, optional=True)),
    attributes=CACHED_ATTENTION.attributes,
    kernels=("cpu",),
)
# CachedAttention of the last row; each row's probability, summed over a key's heads.
SCORED_ATTENTION = Operator(
    "ScoredAttention",
    inputs=(_Q1, *_CACHES, _LENGTH),
    outputs=(_O1, float_tensor("seen", "R Hkv")),
    attributes=(_SCALE, _SOFTCAP),
)
RUNTIME_OPERATORS = (
    TILED_MEMORY_ATTENTION,
    CACHED_CANDIDATE_SCORE,
    MEMORY_STEP,
    SCATTER_SCORES,
    CACHE_APPEND,
    STEP_ATTENTION,
    STEP_ROWS_ATTENTION,
    PARTIAL_ATTENTION,
    PROMPT_ATTENTION,
    SCORED_ATTENTION,
)
