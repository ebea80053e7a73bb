"""The contract between a prefill policy and whatever executes the attention operators.

One method an operator of ONNX domain ``h2o``. Every method writes into arrays that the caller owns, so
that nothing is allocated per chunk or per token. Sizes are read off the arrays:

    n tokens in this call, Hq query heads, Hkv key/value heads, d head size, dv that of values and outputs,
    cap cache capacity, M memory slots,
    Hs score heads: Hkv or Hq, or in some operators a number that divides Hkv; query head h belongs to score head
    h // (Hq // Hs), which then spans several key/value heads.

Values may be a part of the keys (`KV.latent`). dv may differ from d, and Hs be less than Hkv, in
`chunked_intra_attention`, `memory_fused_attention`, `tiled_memory_attention`, `memory_select` and `query_select`;
dv alone in `candidate_score`, `cached_attention`, `step_attention`, `scored_attention` and `cache_append` too. The
other operators refuse such calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model import AttentionShape

__all__ = [
    "AttentionProvider",
    "AttentionShape",
    "Float32",
    "Int32",
    "NextMemory",
    "PartialSoftmax",
    "each_tile",
]

# Arrays on the provider's device. A plain Tensor has the bundle's dtype, float32 or float16.
Float32: TypeAlias = Tensor
Int32: TypeAlias = Tensor


@dataclass(frozen=True)
class PartialSoftmax:
    """State of a softmax over some of the keys: normalised output, row maximum, denominator."""

    o: Tensor  # [n, Hq, dv]
    m: Float32  # [n, Hq]
    l: Float32  # [n, Hq]

    def rows(self, start: int, stop: int) -> PartialSoftmax:
        return PartialSoftmax(self.o[start:stop], self.m[start:stop], self.l[start:stop])


@dataclass(frozen=True)
class NextMemory:
    """Where a memory set goes that was chosen: `memory`, int32 [Hs, M]; and what is kept of it beside."""

    memory: Int32
    last: Int32 | None = None  # as `memory`
    boundary: Int32 | None = None  # as `memory`
    scores: Float32 | None = None  # [Hs, M], of what is in it


def each_tile(
    provider: AttentionProvider, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax
) -> None:
    """`tiled_memory_attention` by one call a tile."""
    for i in range(len(memory)):
        rows = slice(i * tile, min((i + 1) * tile, len(q)))
        part = state.rows(rows.start, rows.stop)
        provider.memory_fused_attention(q[rows], kv, memory[i], part, None)


class AttentionProvider(Protocol):
    """Executes the operators of design domain ``h2o`` for one model shape.

    in_graphs  whether ONNX Runtime's graphs may do instead what it does to a step, by the same kernels
    """

    name: str
    in_graphs: bool

    def takes(self, shape: AttentionShape) -> bool:
        """Whether it has operators for heads of these sizes."""

    def activate(self, shape: AttentionShape) -> None:
        """Prepare to run; called once before any operator."""

    def deactivate(self) -> None:
        """Give back what `activate` took."""

    def chunked_intra_attention(
        self, q: Tensor, k: Tensor, v: Tensor, chunk_size: int, state: PartialSoftmax, colsum: Float32 | None
    ) -> None:
        """Causal attention inside every chunk; row 0 starts a chunk, the last chunk may be partial.

        q [n, Hq, d]; k [n, Hkv, d]; v [n, Hkv, dv], or k itself: the first dv numbers of its rows. Writes `state`
        and, unless it is None, `colsum` [n, Hs]: the sum over the chunk's query rows and the score head's query
        heads of each key's probability.
        """

    def memory_fused_attention(
        self,
        q: Tensor,
        kv: KV,
        memory: Int32,
        state: PartialSoftmax,
        colsum: Float32 | None,
    ) -> None:
        """Attend to the rows of `kv` in `memory` [Hs, M] and fuse the result into `state` in place.

        q [n, Hq, d]. `colsum` [Hs, M], unless None, gets the sums of this pass's own
        probabilities (not the fused ones). M may be any size from 1.
        """

    def tiled_memory_attention(
        self, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax
    ) -> None:
        """`memory_fused_attention` of every `tile` rows of q [n, Hq, d] to a list of their own.

        memory [n / tile rounded up, Hs, M]. Who has no faster way calls `each_tile`.
        """

    def candidate_score(
        self,
        q_window: Tensor,
        k: Tensor,
        kv: KV,
        memory: Int32,
        score_memory: Float32,
        score_chunk: Float32,
    ) -> None:
        """Votes of a chunk's last w queries, by their joint softmax over the memory and the chunk.

        q_window [w, Hq, d] are the queries of the last w rows of k [n, Hkv, d]; memory [Hs, M] has rows
        of `kv`, and M may be 0. Writes score_memory [Hs, M] and score_chunk [n, Hs].
        """

    def memory_select(
        self, score: Float32, memory: Int32, start: int, stop: int, local: int, sink: int, out: Int32
    ) -> None:
        """M_c = sorted(last `local` tokens of [start, stop) and the top of everything else by score).

        score [cap, Hs]; candidates are memory [Hs, Mp] (sorted, all below `start`) and start … stop - 1;
        out [Hs, M] with M = local + heavy. Positions below `sink` always win; ties go to the lower index, and
        scores below 1e-30 tie: so close to float32's end, implementations differ in what they round to zero.
        Needs Mp + (stop - start) >= M.
        """

    def memory_step(
        self,
        score: Float32,
        memory: Int32,
        values: Float32 | None,
        add: bool,
        start: int,
        stop: int,
        local: int,
        sink: int,
        into: NextMemory,
    ) -> None:
        """The end of a chunk: `scatter_scores` of `values` [Hs, Mp] in the rows of `memory`, unless they are None;
        then `memory_select`, whose result goes `into` several places.
        """

    def query_select(
        self,
        q: Tensor,
        kv: KV,
        candidates: Int32,
        past: Tensor,
        tile: int,
        stride: int,
        share: int,
        reach: int,
        local: int,
        sink: int,
        out: Int32,
    ) -> None:
        """Memory sets of tiles of queries, chosen by every `stride`-th row of a tile itself.

        q [n, Hq, d] in t tiles of `tile` rows, the last may be partial. past int64 [t]: tile i chooses among the
        rows of `kv` below past[i], at least M of them; candidates [c, Hs, C], sorted and all below past: only among
        those of list i // share, unless C is 0. out [t, Hs, M]: the last `local` of the rows below past, and those
        with the highest scores: softmax probabilities over all that are looked at, summed over the votes, and a
        quarter of those of the rows up to `reach` before and behind. Sinks and ties are as in `memory_select`.
        """

    def cached_attention(self, q: Tensor, kv: KV, o: Tensor) -> None:
        """Exact causal attention: row r of q [n, Hq, d] stands at row kv.length - n + r and sees `kv` up to it.

        o [n, Hq, dv].
        """

    def step_attention(self, q: Tensor, k: Tensor, v: Tensor | None, kv: KV, o: Tensor) -> None:
        """`cache_append` of one row, k and v, at kv.length - 1, and `cached_attention` of that row."""

    def scored_attention(self, q: Tensor, kv: KV, o: Tensor) -> None:
        """`cached_attention` of one row, the last; kv.seen gets what each row's probability was."""

    def landmark_update(
        self, kv: KV, k_mean: Float32, v_mean: Float32, start: int | Tensor, block_size: int
    ) -> None:
        """Rows start … kv.length - 1 of `kv` are taken up into the means of their blocks, in place.

        k_mean, v_mean [blocks, Hkv, d] are of `block_size` rows each, and rows before `start` are in them. `start`
        is an int64 [1] on the device where kv.length is: of a decode step, which has one row.
        """

    def subquadratic_attention(
        self,
        q: Tensor,
        kv: KV,
        k_mean: Float32,
        v_mean: Float32,
        global_rows: Int32,
        window: int,
        block_size: int,
        strides: int,
        count_bias: int,
        o: Tensor,
    ) -> None:
        """Row r of q [n, Hq, d] stands at i = kv.length - n + r and sees, each once and in one softmax:

        the tokens i - window … i, `global_rows` [M] up to i, all different, and with `strides` the tokens i - 2^k;
        of the means of complete blocks the newest two, and with `strides` those 2^k before the newest. With
        `count_bias` a mean's score grows by ln(block_size). A block size of 0: no means.
        """

    def page_bounds(
        self, kv: KV, k_min: Float32, k_max: Float32, start: int | Tensor, page_size: int
    ) -> None:
        """Rows start … kv.length - 1 of `kv` join the smallest and the largest keys of their pages, in place.

        k_min, k_max [pages, Hkv, d] are of `page_size` rows each; otherwise as `landmark_update`.
        """

    def page_select(
        self, q: Tensor, k_min: Float32, k_max: Float32, kv: KV, page_size: int, page_list: Int32
    ) -> None:
        """page_list [Hs, P] = the last page of `kv` and the P - 1 others whose keys may score highest, rising.

        q [1, Hq, d]. A page's bound is Σ max(q·k_min, q·k_max) over channels, of a set's query heads the largest;
        ties go to the lower page. Where there are no more pages: -1.
        """

    def page_attention(self, q: Tensor, kv: KV, page_list: Int32, page_size: int, o: Tensor) -> None:
        """One token's attention, q and o [1, Hq, d], to the pages of `kv` in page_list [Hs, P]."""

    def vertical_slash_select(
        self, q: Tensor, kv: KV, sink: int, near: int, columns: Int32, distances: Int32
    ) -> None:
        """The columns and the diagonals on which the probabilities of q [n, Hq, d], the last rows of `kv`, lie.

        columns [Hq, M] are keys, those below `sink` among them; distances [Hq, D] from a row back to a key, with
        those below `near`. Both rise, with -1 where there are no more; ties go to the lower number.
        """

    def vertical_slash_attention(
        self, q: Tensor, kv: KV, columns: Int32, distances: Int32, o: Tensor
    ) -> None:
        """q [n, Hq, d], the last rows of `kv`, see up to themselves the columns [Hq, M] and what their tile sees.

        Row 0 begins a tile of 64 rows. With its end e a tile sees, for 0 and each s < e of distances [Hq, D], 64
        keys before max(e - s, 64). From the largest distance on, a block that begins not behind the end of the run
        of keys before it extends that by 64 where it reaches further.
        """

    def cache_append(self, k: Tensor, v: Tensor | None, at: int | Tensor, kv: KV) -> None:
        """Rows of `kv` from `at` on become k [n, Hkv, d] and v [n, Hkv, dv], which have the model's dtype, as `kv`
        stores them. Where values are a part of the keys, v is not read.

        `at` is an int64 [1] on the device for the one row of a decode step: so that it can be recorded. Otherwise
        the rows come behind dense graphs that were enqueued before, and dense graphs that come now see them.
        """

    def scatter_scores(self, score: Float32, rows: Int32, values: Float32, add: bool) -> None:
        """score [cap, Hs] at rows [Hs, M] becomes values [Hs, M], or grows by them. A head's rows are distinct."""
