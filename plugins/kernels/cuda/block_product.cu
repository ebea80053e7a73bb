// BlockProduct: rows times a matrix of 4-bit integers, a block of 32 inputs of a column with one scale.
//
// Floor for few rows: the weights' bytes, 0.5625 bytes per weight with float16 scales. A warp owns a stripe
// of 32 columns and reads each block of it as 512 consecutive bytes, 16 per lane. Lane 4 g + t reads one word
// for each of the columns 4 g ... 4 g + 3, with inputs 8 t ... 8 t + 7. The product is transposed: weights
// are the first operand of mma_16x8x16. The sum over inputs allows any order of inputs, so each lane can use
// its own eight. Words 0 and 1 of all lanes are the operands of 16 columns, words 2 and 3 those of the next
// 16. Activations are read in the same order, eight consecutive elements of a row, so nothing is shuffled.
// Integers become halves in registers exactly. They are rounded once, with their scale, as DequantizeLinear
// does.
//
// Up to 16 rows: the warps of a thread block share the blocks of a stripe and add their sums in a fixed
// order. More rows: a thread block computes 128 rows by 128 columns, with operands prefetched into shared
// memory three blocks of inputs ahead. float32 is exact and simple: a thread owns a column.

#include "checks.h"
#include "integers.cuh"
#include "launch.h"
#include "numbers.cuh"
#include "ptx.cuh"

namespace h2o::cuda {
namespace {

constexpr int kBlock = 32;   // inputs that share a scale
constexpr int kStripe = 32;  // columns of a warp
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kFewRows = 16;

template <class T>
struct Weights {
    const uint4* words;  // [blocks, outputs]
    const T* scales;     // [blocks, outputs]
    int blocks, outputs;
};

// A lane's share of one block of a stripe.
struct Piece {
    uint4 words;   // of columns 4 g ... 4 g + 3
    uint2 scales;  // theirs, as halves
};

// Zeros outside the matrix.
__device__ __forceinline__ Piece load_piece(const Weights<half>& w, int block, int stripe, int lane) {
    const int column = stripe + lane / 4 * 4;
    Piece piece = {make_uint4(0, 0, 0, 0), {0, 0}};
    if (block < w.blocks && column < w.outputs) {
        const int row = block * w.outputs;
        piece.words = __ldg(w.words + row + stripe + lane);
        piece.scales = __ldg(reinterpret_cast<const uint2*>(w.scales + row + column));
    }
    return piece;
}

// A block of a stripe as mma operands: [j] has columns 4 g + 2 j and 4 g + 2 j + 1.
struct Operands {
    uint32_t of[2][2][4];
};

__device__ __forceinline__ Operands operands_of(const Piece& piece) {
    const uint32_t words[4] = {piece.words.x, piece.words.y, piece.words.z, piece.words.w};
    const Pair scales[2] = {Pair(piece.scales.x), Pair(piece.scales.y)};
    Operands operands;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        uint32_t even[4], odd[4];
        unpack(words[2 * j], __low2half2(scales[j].halves), even);
        unpack(words[2 * j + 1], __high2half2(scales[j].halves), odd);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            operands.of[j][i / 2][i % 2 * 2] = even[i];
            operands.of[j][i / 2][i % 2 * 2 + 1] = odd[i];
        }
    }
    return operands;
}

// sums += rows times a block of a stripe. inputs_of(i) gives the lane's eight inputs of row 8 i + g.
// sums[i][j] has columns 4 g + 2 j and 4 g + 2 j + 1: the first two values and the last two, each for rows 8
// i + 2 t and 8 i + 2 t + 1.
template <int TILES, class F>
__device__ __forceinline__ void multiply(const Operands& operands, F&& inputs_of,
                                         float (&sums)[TILES][2][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const uint4 inputs = inputs_of(tile);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            mma_16x8x16(sums[tile][j], operands.of[j][0], inputs.x, inputs.y);
            mma_16x8x16(sums[tile][j], operands.of[j][1], inputs.z, inputs.w);
        }
    }
}

// n is at most 8 * TILES. Each warp sums every kWarps-th block of the stripe.
template <int TILES>
__global__ void __launch_bounds__(kThreads) few_rows(const half* x, Weights<half> w, half* y, int n) {
    constexpr int kAhead = 4;  // blocks that a warp has in flight
    constexpr int kRows = 8 * TILES;
    float* const shared = reinterpret_cast<float*>(dynamic_shared());  // [kWarps, kRows, kStripe]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int stripe = blockIdx.x * kStripe, inputs = w.blocks * kBlock;
    float sums[TILES][2][4] = {};
    for (int round = 0; round < w.blocks; round += kWarps * kAhead) {
        Piece pieces[kAhead];
        uint4 rows[kAhead][TILES];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int block = round + i * kWarps + warp;
            pieces[i] = load_piece(w, block, stripe, lane);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int row = 8 * tile + g;
                rows[i][tile] = make_uint4(0, 0, 0, 0);
                if (row < n && block < w.blocks)
                    rows[i][tile] =
                        __ldg(reinterpret_cast<const uint4*>(x + row * inputs + block * kBlock + 8 * t));
            }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            multiply(operands_of(pieces[i]), [&](int tile) { return rows[i][tile]; }, sums);
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float (&s)[2][4] = sums[tile];
            float* const to = shared + (warp * kRows + 8 * tile + 2 * t + i) * kStripe + 4 * g;
            *reinterpret_cast<float4*>(to) = make_float4(s[0][i], s[0][2 + i], s[1][i], s[1][2 + i]);
        }
    __syncthreads();
    const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 2;
    if (row >= n || stripe + column >= w.outputs) return;
    float left = 0, right = 0;
#pragma unroll
    for (int peer = 0; peer < kWarps; ++peer) {
        const float2 two = *reinterpret_cast<const float2*>(shared + (peer * kRows + row) * kStripe + column);
        left += two.x;
        right += two.y;
    }
    const int64_t to = static_cast<int64_t>(row) * w.outputs + stripe + column;
    *reinterpret_cast<__half2*>(y + to) = __floats2half2_rn(left, right);
}

constexpr int kTileRows = 128, kTileColumns = 128;
constexpr int kWarpRows = 64, kWarpsBeside = kTileColumns / kStripe;
static_assert(kTileRows / kWarpRows * kWarpsBeside == kWarps, "every warp has a part of the tile");

// One block of inputs of a tile in shared memory.
struct Stage {
    uint4 inputs[kTileRows][kBlock / 8];
    uint4 words[kTileColumns];
    uint4 scales[kTileColumns / 8];
};
constexpr int kStages = 4;

// Concurrent blocks form a nearly square region, to reuse what they read: 8 row tiles share one column tile
// after the other.
struct Place {
    int row, column;
};
__device__ __forceinline__ Place place_of(int index, int row_tiles, int column_tiles) {
    constexpr int kTogether = 8;
    const int group = index / (kTogether * column_tiles), rest = index - group * kTogether * column_tiles;
    const int height = min(kTogether, row_tiles - group * kTogether);
    return {(group * kTogether + rest % height) * kTileRows, rest / height * kTileColumns};
}

__device__ __forceinline__ void fetch(Stage& to, const half* x, const Weights<half>& w, int n,
                                      const Place& place, int block) {
    const int index = threadIdx.x, inputs = w.blocks * kBlock;
#pragma unroll
    for (int i = 0; i < kTileRows * 4 / kThreads; ++i) {
        const int local = i * (kThreads / 4) + index / 4, row = min(place.row + local, n - 1);
        copy16_async(shared_address(&to.inputs[local][index % 4]),
                     x + row * inputs + block * kBlock + index % 4 * 8, true);
    }
    const int line = block * w.outputs;
    if (index < kTileColumns) {
        const bool there = place.column + index < w.outputs;
        copy16_async(shared_address(&to.words[index]), w.words + line + (there ? place.column + index : 0),
                     there);
    } else if (index < kTileColumns + kTileColumns / 8) {
        const int local = index - kTileColumns, column = place.column + 8 * local;
        const bool there = column < w.outputs;
        copy16_async(shared_address(&to.scales[local]), w.scales + line + (there ? column : 0), there);
    }
}

__global__ void __launch_bounds__(kThreads, 2)
    many_rows(const half* x, Weights<half> w, half* y, int n, int row_tiles, int column_tiles) {
    constexpr int kTiles = kWarpRows / 8;
    Stage* const stages = reinterpret_cast<Stage*>(dynamic_shared());
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const Place place = place_of(blockIdx.x, row_tiles, column_tiles);
    const int own_column = warp % kWarpsBeside * kStripe, own_row = warp / kWarpsBeside * kWarpRows;
    for (int block = 0; block < kStages - 1; ++block) {
        if (block < w.blocks) fetch(stages[block], x, w, n, place, block);
        copy_commit();
    }
    float sums[kTiles][2][4] = {};
    for (int block = 0; block < w.blocks; ++block) {
        copy_wait<kStages - 2>();
        __syncthreads();  // this block of inputs has arrived, and all threads have finished with the previous
                          // one
        const int later = block + kStages - 1;
        if (later < w.blocks) fetch(stages[later % kStages], x, w, n, place, later);
        copy_commit();
        const Stage& stage = stages[block % kStages];
        const uint2* const scales = reinterpret_cast<const uint2*>(stage.scales);
        const Piece piece = {stage.words[own_column + lane], scales[own_column / 4 + g]};
        multiply(operands_of(piece), [&](int tile) { return stage.inputs[own_row + 8 * tile + g][t]; }, sums);
    }
    const int column = place.column + own_column + 4 * g;
    if (column >= w.outputs) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = place.row + own_row + 8 * tile + 2 * t + i;
            const float (&s)[2][4] = sums[tile];
            if (row < n)
                *reinterpret_cast<uint2*>(y + static_cast<int64_t>(row) * w.outputs + column) = {
                    pack_half2(s[0][i], s[0][2 + i]), pack_half2(s[1][i], s[1][2 + i])};
        }
}

constexpr int kExactRows = 4;  // of a thread

__global__ void __launch_bounds__(kThreads) exact_rows(const float* x, Weights<float> w, float* y, int n) {
    float* const shared = reinterpret_cast<float*>(dynamic_shared());  // [kWarps, kExactRows, kStripe]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int column = blockIdx.x * kStripe + lane, first = blockIdx.y * kExactRows;
    const bool there = column < w.outputs;
    const int64_t inputs = static_cast<int64_t>(w.blocks) * kBlock;
    float sums[kExactRows] = {};
    for (int block = warp; there && block < w.blocks; block += kWarps) {
        const int64_t at = static_cast<int64_t>(block) * w.outputs;
        // Word t of the column: among each four columns, the four words of a column are permuted.
        const auto* const words =
            reinterpret_cast<const uint32_t*>(w.words + at + column / 4 * 4) + column % 4;
        float part[kExactRows] = {};
        for (int i = 0; i < kBlock; ++i) {
            const uint32_t word = words[i / 8 * 4] >> (4 * (i % 8 / 2 + 4 * (i % 2)));
            const float weight = static_cast<float>(static_cast<int>(word & 15u) - 8);
#pragma unroll
            for (int r = 0; r < kExactRows; ++r)
                part[r] = fmaf(weight, x[min(first + r, n - 1) * inputs + block * kBlock + i], part[r]);
        }
#pragma unroll
        for (int r = 0; r < kExactRows; ++r) sums[r] = fmaf(w.scales[at + column], part[r], sums[r]);
    }
#pragma unroll
    for (int r = 0; r < kExactRows; ++r) shared[(warp * kExactRows + r) * kStripe + lane] = sums[r];
    __syncthreads();
    if (warp >= kExactRows || first + warp >= n || !there) return;
    float sum = 0;
    for (int peer = 0; peer < kWarps; ++peer) sum += shared[(peer * kExactRows + warp) * kStripe + lane];
    y[static_cast<int64_t>(first + warp) * w.outputs + column] = sum;
}

h2o_status multiply_halves(const half* x, const Weights<half>& w, half* y, int n, cudaStream_t stream) {
    const unsigned stripes = static_cast<unsigned>(ceil_div(w.outputs, kStripe));
    constexpr size_t kSumBytes = kWarps * kStripe * sizeof(float);
    if (n <= 8) return launch(few_rows<1>, dim3(stripes, 1, 1), kThreads, 8 * kSumBytes, stream, x, w, y, n);
    if (n <= kFewRows)
        return launch(few_rows<2>, dim3(stripes, 1, 1), kThreads, 16 * kSumBytes, stream, x, w, y, n);
    const int row_tiles = static_cast<int>(ceil_div(n, kTileRows));
    const int column_tiles = static_cast<int>(ceil_div(w.outputs, kTileColumns));
    const int64_t tiles = static_cast<int64_t>(row_tiles) * column_tiles;
    if (tiles > INT32_MAX) return H2O_UNSUPPORTED;
    return launch(many_rows, dim3(static_cast<unsigned>(tiles), 1, 1), kThreads, kStages * sizeof(Stage),
                  stream, x, w, y, n, row_tiles, column_tiles);
}

h2o_status multiply_floats(const float* x, const Weights<float>& w, float* y, int n, cudaStream_t stream) {
    const dim3 grid(ceil_div(w.outputs, kStripe), ceil_div(n, kExactRows), 1);
    return launch(exact_rows, grid, kThreads, kWarps * kExactRows * kStripe * sizeof(float), stream, x, w, y,
                  n);
}

template <class T>
Weights<T> weights_of(const int32_t* words, const void* scales, int inputs, int outputs) {
    return {reinterpret_cast<const uint4*>(words), static_cast<const T*>(scales), inputs / kBlock, outputs};
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::BlockProduct& call) {
    const cudaStream_t stream = stream_of(call);
    if (call.n <= 0 || call.K <= 0 || call.N <= 0 || !call.x || !call.weights || !call.scales || !call.y)
        return H2O_BAD_ARGUMENT;
    if (call.K % kBlock != 0 || call.N % 8 != 0) return H2O_UNSUPPORTED;
    // Kernels index their inputs with 32 bits.
    if (int64_t{call.K} / kBlock * call.N > INT32_MAX || int64_t{call.n} * call.K > INT32_MAX)
        return H2O_UNSUPPORTED;
    if (call.shape.dtype == H2O_F16)
        return multiply_halves(static_cast<const half*>(call.x),
                               weights_of<half>(call.weights, call.scales, call.K, call.N),
                               static_cast<half*>(call.y), call.n, stream);
    if (call.shape.dtype == H2O_F32)
        return multiply_floats(static_cast<const float*>(call.x),
                               weights_of<float>(call.weights, call.scales, call.K, call.N),
                               static_cast<float*>(call.y), call.n, stream);
    return H2O_UNSUPPORTED;
}

size_t workspace(const calls::BlockProduct&) {
    return 0;
}

}  // namespace h2o::cuda
