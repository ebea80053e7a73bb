// IntegerProduct: at most 16 rows times a matrix of integers of 4 or 8 bits, as ONNX Runtime's MatMulNBits
// stores them: one output after the other, its inputs in order, blocks of 32 or more inputs with one scale.
//
// Floor: the integers' bytes. A thread block owns 16 outputs, and its warps share their inputs. A lane reads
// 32 consecutive inputs of outputs g and g + 8, several such pieces ahead. The product is transposed:
// integers are the first operand of mma_16x8x16, rows the second. The sum over inputs allows any order of
// inputs, so a lane multiplies its own, in the order in which halves are cut out of a word; only its rows'
// inputs are shuffled.
//
// Warps add their sums in a fixed order. So a row's result does not depend on the other rows.

#include "checks.h"
#include "h2o/integer_product.h"
#include "integers.cuh"
#include "launch.h"
#include "numbers.cuh"

namespace h2o::cuda {
namespace {

constexpr int kPiece = 32;  // inputs that a lane reads of an output at once
constexpr int kLanes = 4;   // of a warp that share an output's inputs
constexpr int kOutputs = 16;
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMostRows = 16;

struct Integers {
    const uint4* words;      // [outputs, pieces, bits / 4]
    const uint16_t* scales;  // [outputs, pieces >> block], halves
    int pieces, outputs;
    int block;  // log2 of the pieces that share a scale
};

template <int BITS>
struct Piece {
    uint32_t words[BITS];
    uint32_t scale;  // two equal halves
};

// Zeros outside of the matrix.
template <int BITS>
__device__ __forceinline__ Piece<BITS> load_piece(const Integers& w, int piece, int output) {
    const bool there = piece < w.pieces && output < w.outputs;
    const int at = there ? output * w.pieces + piece : 0;
    Piece<BITS> read;
#pragma unroll
    for (int i = 0; i < BITS / 4; ++i) {
        const uint4 four = there ? __ldg(w.words + at * int64_t{BITS / 4} + i) : make_uint4(0, 0, 0, 0);
        read.words[4 * i] = four.x, read.words[4 * i + 1] = four.y;
        read.words[4 * i + 2] = four.z, read.words[4 * i + 3] = four.w;
    }
    // A whole number of pieces shares a scale, and of scales an output.
    const uint32_t scale = there ? __ldg(w.scales + (at >> w.block)) : 0;
    read.scale = scale | scale << 16;
    return read;
}

// Integers 8 `eight` ... 8 `eight` + 7 of a piece times their scale.
template <int BITS>
__device__ __forceinline__ void unpack_eight(const Piece<BITS>& piece, int eight, uint32_t (&pairs)[4]) {
    const Pair scale(piece.scale);
    if constexpr (BITS == 4)
        unpack(piece.words[eight], scale.halves, pairs);
    else
        unpack(piece.words[2 * eight], piece.words[2 * eight + 1], scale.halves, pairs);
}

// The low halves of two pairs as a pair, and the high ones: one instruction each.
__device__ __forceinline__ uint32_t lows(uint32_t a, uint32_t b) {
    return (a & 0xffffu) | b << 16;
}
__device__ __forceinline__ uint32_t highs(uint32_t a, uint32_t b) {
    return a >> 16 | (b & 0xffff0000u);
}

// Eight inputs of a row as pairs in the order of `unpack`.
template <int BITS>
__device__ __forceinline__ void in_order(const uint4& inputs, uint32_t (&pairs)[4]) {
    const uint32_t second = BITS == 4 ? inputs.z : inputs.y, third = BITS == 4 ? inputs.y : inputs.z;
    pairs[0] = lows(inputs.x, second);
    pairs[1] = highs(inputs.x, second);
    pairs[2] = lows(third, inputs.w);
    pairs[3] = highs(third, inputs.w);
}

// sums += a piece of outputs g and g + 8 times the same inputs of rows 8 i + g. The first two of sums[i] are
// output g's, the others output g + 8's, each for rows 8 i + 2 t and 8 i + 2 t + 1.
template <int BITS, int TILES>
__device__ __forceinline__ void multiply(const Piece<BITS> (&pieces)[2], const uint4 (&rows)[TILES][4],
                                         float (&sums)[TILES][4]) {
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
        uint32_t first[4], second[4];
        unpack_eight(pieces[0], eight, first);
        unpack_eight(pieces[1], eight, second);
        const uint32_t operands[2][4] = {{first[0], second[0], first[1], second[1]},
                                         {first[2], second[2], first[3], second[3]}};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            uint32_t inputs[4];
            in_order<BITS>(rows[tile][eight], inputs);
            mma_16x8x16(sums[tile], operands[0], inputs[0], inputs[1]);
            mma_16x8x16(sums[tile], operands[1], inputs[2], inputs[3]);
        }
    }
}

// n is at most 8 * TILES.
template <int BITS, int TILES>
__global__ void __launch_bounds__(kThreads) integer_rows(const half* x, Integers w, half* y, int n) {
    constexpr int kAhead = 16 / BITS;  // pieces of an output that a lane has in flight
    constexpr int kRows = 8 * TILES;
    constexpr int kStride = kOutputs + 4;  // lanes that write at once write to different banks
    float* const shared = reinterpret_cast<float*>(dynamic_shared());  // [kWarps, kRows, kStride]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / kLanes, t = lane % kLanes;
    const int first = blockIdx.x * kOutputs, inputs = w.pieces * kPiece;
    float sums[TILES][4] = {};
    for (int round = warp * kLanes + t; round < w.pieces + t; round += kWarps * kLanes * kAhead) {
        Piece<BITS> pieces[kAhead][2];
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
#pragma unroll
            for (int half_of = 0; half_of < 2; ++half_of)
                pieces[i][half_of] =
                    load_piece<BITS>(w, round + i * kWarps * kLanes, first + 8 * half_of + g);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const int piece = round + i * kWarps * kLanes;
            uint4 rows[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int row = 8 * tile + g;
                const bool there = row < n && piece < w.pieces;
                const auto* from =
                    reinterpret_cast<const uint4*>(x + (there ? row * inputs + piece * kPiece : 0));
#pragma unroll
                for (int eight = 0; eight < 4; ++eight)
                    rows[tile][eight] = there ? __ldg(from + eight) : make_uint4(0, 0, 0, 0);
            }
            multiply<BITS, TILES>(pieces[i], rows, sums);
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            shared[(warp * kRows + 8 * tile + 2 * t + i % 2) * kStride + i / 2 * 8 + g] = sums[tile][i];
    __syncthreads();
    const int row = threadIdx.x / kOutputs, output = threadIdx.x % kOutputs;
    if (row >= n || first + output >= w.outputs) return;
    float sum = 0;
#pragma unroll
    for (int peer = 0; peer < kWarps; ++peer) sum += shared[(peer * kRows + row) * kStride + output];
    y[static_cast<int64_t>(row) * w.outputs + first + output] = __float2half_rn(sum);
}

template <int BITS>
h2o_status multiply_rows(const half* x, const Integers& w, half* y, int n, cudaStream_t stream) {
    const dim3 grid(ceil_div(w.outputs, kOutputs), 1, 1);
    constexpr size_t kTileBytes = kWarps * 8 * (kOutputs + 4) * sizeof(float);
    if (n <= 8) return launch(integer_rows<BITS, 1>, grid, kThreads, kTileBytes, stream, x, w, y, n);
    return launch(integer_rows<BITS, 2>, grid, kThreads, 2 * kTileBytes, stream, x, w, y, n);
}

}  // namespace

h2o_status run(const IntegerProduct& product, void* stream) {
    const int64_t n = product.rows, inputs = product.inputs, outputs = product.outputs, block = product.block;
    if (n <= 0 || inputs <= 0 || outputs <= 0 || block <= 0) return H2O_BAD_ARGUMENT;
    if (any_null(product.x, product.integers, product.scales, static_cast<const void*>(product.y)))
        return H2O_BAD_ARGUMENT;
    if (n > kMostRows || block < kPiece || (block & (block - 1)) != 0 || inputs % block != 0)
        return H2O_UNSUPPORTED;
    // The kernel indexes with 32 bits.
    if (n * inputs > INT32_MAX || outputs > INT32_MAX / (inputs / kPiece)) return H2O_UNSUPPORTED;
    int shift = 0;
    while (kPiece << shift < block) ++shift;
    const Integers w = {static_cast<const uint4*>(product.integers),
                        static_cast<const uint16_t*>(product.scales), static_cast<int>(inputs / kPiece),
                        static_cast<int>(outputs), shift};
    const auto* x = static_cast<const half*>(product.x);
    auto* y = static_cast<half*>(product.y);
    const auto on = static_cast<cudaStream_t>(stream);
    if (product.bits == 4) return multiply_rows<4>(x, w, y, static_cast<int>(n), on);
    if (product.bits == 8) return multiply_rows<8>(x, w, y, static_cast<int>(n), on);
    return H2O_UNSUPPORTED;
}

}  // namespace h2o::cuda
