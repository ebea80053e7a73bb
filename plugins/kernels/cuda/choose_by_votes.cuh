// A tile's choice by its queries: their votes for keys are summed (tile_votes.h), and another launch adds up
// the sums of each tile and score head, and chooses.
#pragma once

#include "row_range.cuh"
#include "select.cuh"
#include "tile_votes.h"

namespace h2o::cuda {

// CHOICE has choose<THREADS>(sums, tile, head, heads, shared): what a block does with its tile's sums. Those
// of pieces beyond the first are added to it.
template <class CHOICE>
__global__ void __launch_bounds__(kSelectThreads)
    choose_by_sums(float* score, int places, const int64_t* length, int pieces, const CHOICE choice) {
    const int64_t set = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    float* const sums = score + set * pieces * places;
    const int keys = length ? bounded(length[blockIdx.y], 1, places) : places;
    for (int i = threadIdx.x; pieces > 1 && i < keys; i += kSelectThreads)
        for (int piece = 1; piece < pieces; ++piece) sums[i] += sums[piece * places + i];
    __syncthreads();
    choice.template choose<kSelectThreads>(sums, blockIdx.y, blockIdx.x, gridDim.x, dynamic_shared());
}

// Sums the votes of all tiles for their keys, and lets each tile choose. q [n, Hq, d]. `sharing` score heads
// have one list, or no list and any number look at all keys.
template <class CHOICE>
h2o_status choose_by_votes(const h2o_shape& shape, const VotingTiles& tiles, const void* q,
                           const KeySource& keys, const OwnRows& own, int sharing, const VoteScratch& scratch,
                           const CHOICE& choice, cudaStream_t stream) {
    const h2o_status status = scratch.on_tensor_cores
                                  ? sum_half_votes(shape, tiles, q, keys, own, sharing, scratch, stream)
                                  : sum_votes(shape, tiles, q, keys, own, scratch, stream);
    if (status != H2O_OK) return status;
    const dim3 grid(static_cast<unsigned>(shape.score_heads), static_cast<unsigned>(tiles.count()), 1);
    return launch(choose_by_sums<CHOICE>, grid, kSelectThreads, CHOICE::kSharedBytes, stream, scratch.score,
                  scratch.places, keys.length, scratch.pieces, choice);
}

}  // namespace h2o::cuda
