// Tiles of half-precision rows in shared memory: their layout, how they are copied, and the addresses for
// ldmatrix.
#pragma once

#include "ptx.cuh"
#include "row_range.cuh"

namespace h2o::cuda {

constexpr float kLog2E = 1.4426950408889634f;

constexpr int largest_power_of_two_in(int count, int most) {
    int power = 1;
    while (power < most && count % (power * 2) == 0) power *= 2;
    return power;
}

// Rows of D halves, one after the other, without padding. A row is D / 8 units of 16 bytes, and the 32 banks
// hold 8 units side by side. ldmatrix reads one unit of 8 consecutive rows at a time. The unit's place in its
// row is XORed with the row number, so that these 8 units lie in different banks for every D that is a
// multiple of 16.
template <int D>
struct TileRows {
    static constexpr int kPieces = D / 8;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kGroup =
        largest_power_of_two_in(kPieces, 8);   // units that are permuted among each other
    static constexpr int kCycle = 8 / kGroup;  // rows that lie in different banks without the swizzle

    static constexpr __host__ __device__ int flip(int row) { return row / kCycle % kGroup; }
    static constexpr __host__ __device__ int offset(int row, int piece) {
        return row * kRowBytes + (piece ^ flip(row)) * 16;
    }
    // Whether the same unit of 8 rows always lies in 8 different places of the 128 bytes that the banks span.
    static constexpr bool spread() {
        for (int piece = 0; piece < kPieces; ++piece) {
            unsigned met = 0;
            for (int row = 0; row < 8; ++row) met |= 1u << offset(row, piece) / 16 % 8;
            if (met != 0xffu) return false;
        }
        return true;
    }
};

// The addresses that one lane gives to ldmatrix: unit `odd` of every pair of units, of row `row` and of rows
// a multiple of 8 later. All these rows have the same swizzle. Permuted units are aligned to their number, so
// going to another pair flips address bits too.
template <int D>
class LanePieces {
  public:
    __device__ __forceinline__ LanePieces(shared_t tile, int row, int odd)
        : place_(tile + static_cast<shared_t>(TileRows<D>::offset(row, odd))) {}
    // Pair `pair`, `rows` rows later; both are compile-time constants.
    __device__ __forceinline__ shared_t at(int rows, int pair) const {
        return (place_ ^ static_cast<shared_t>(pair % kPlaces * 32)) +
               static_cast<shared_t>(rows * TileRows<D>::kRowBytes + pair / kPlaces * kPlaces * 32);
    }

  private:
    static constexpr int kPlaces = TileRows<D>::kGroup > 1 ? TileRows<D>::kGroup / 2 : 1;
    static_assert(TileRows<D>::kGroup > 1, "pairs of pieces stay together");
    static_assert(TileRows<D>::spread(), "no ldmatrix meets a bank twice");
    static_assert(TileRows<D>::kRowBytes % (TileRows<D>::kGroup * 16) == 0,
                  "as tiles, which are on 128 bytes");
    shared_t place_;
};

// The units of a tile that one thread copies: always the same one of a strip that is `WIDE` units wide, in
// every STEP-th row. STEP is a power of two, so the swizzle gives few different places within a row. They are
// computed once; the rest of an address is a compile-time constant.
template <int D, int THREADS, int FIRST, int WIDE>
struct Strip {
    static constexpr int kStep = THREADS / WIDE;
    static constexpr int kPlaces = kStep < 8 ? 8 / kStep : 1;
    static_assert((kStep & (kStep - 1)) == 0, "flips come round");
    unsigned row, piece;  // within the row, without FIRST

    __device__ __forceinline__ Strip() : row(threadIdx.x / WIDE), piece(threadIdx.x % WIDE) {}
    // Address of the strip's unit in row `row + i * kStep`, relative to row 0.
    __device__ __forceinline__ int offset(int i) const {
        const int near = i % kPlaces * kStep;
        return TileRows<D>::offset(static_cast<int>(row) + near, FIRST + static_cast<int>(piece)) +
               (i * kStep - near) * TileRows<D>::kRowBytes;
    }
};

// Calls put(to, from, piece) for each unit of a tile [ROWS, D] that this thread copies. A unit of 8 elements
// goes to `to`; it is unit `piece` after from = from_at(row, number), the thread's first element of the row.
template <int D, int ROWS, int THREADS, int FIRST, int WIDE, int TIMES, class F, class P>
__device__ __forceinline__ void for_strip(shared_t to, F&& from_at, P&& put) {
    using Own = Strip<D, THREADS, FIRST, WIDE>;
    const Own own;
#pragma unroll
    for (int i = 0; i < (ROWS + Own::kStep - 1) / Own::kStep; ++i) {
        const int row = static_cast<int>(own.row) + i * Own::kStep;
        if (ROWS % Own::kStep != 0 && row >= ROWS) break;
        const auto from = from_at(row, static_cast<int>(own.piece) * 8);
#pragma unroll
        for (int j = 0; j < TIMES; ++j)
            put(to + static_cast<shared_t>(own.offset(i) + j * WIDE * 16), from, FIRST + j * WIDE);
    }
}

// Rows are cut into strips of 128 bytes, which 8 threads copy side by side, and one narrower strip.
template <int D, int ROWS, int THREADS, class F, class P>
__device__ __forceinline__ void for_pieces(shared_t to, F&& from_at, P&& put) {
    constexpr int kPieces = TileRows<D>::kPieces, kWhole = kPieces / 8, kRest = kPieces % 8;
    if constexpr (kWhole > 0) for_strip<D, ROWS, THREADS, 0, 8, kWhole>(to, from_at, put);
    if constexpr (kRest > 0) for_strip<D, ROWS, THREADS, kWhole * 8, kRest, 1>(to, from_at, put);
}

// ROWS rows of D halves; from_at(i, number) is the address of element `number` of row i.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows_async(shared_t to, F&& from_at) {
    for_pieces<D, ROWS, THREADS>(to, from_at, [](shared_t place, const half* from, int piece) {
        copy16_async(place, from + piece * 8, true);
    });
}

// Rows row_of(i) of a set.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows(shared_t to, const SetRows<half>& from, F&& row_of) {
    copy_rows_async<D, ROWS, THREADS>(to, [&](int i, int number) { return from.at(row_of(i), number); });
}

// Integers become halves on the way, so the thread waits for its loads.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows(shared_t to, const SetRows<int8_t>& from, F&& row_of) {
    struct Place {
        const int8_t* numbers;
        float scale;
    };
    const auto from_at = [&](int i, int number) {
        const int row = row_of(i);
        return Place{from.at(row, number), from.scale(row)};
    };
    for_pieces<D, ROWS, THREADS>(to, from_at, [](shared_t place, const Place& at, int piece) {
        const uint64_t eight = *reinterpret_cast<const uint64_t*>(at.numbers + piece * 8);
        const auto number = [&](int i) {
            return static_cast<float>(static_cast<int8_t>(eight >> (8 * i))) * at.scale;
        };
        store16(place, make_uint4(pack_half2(number(0), number(1)), pack_half2(number(2), number(3)),
                                  pack_half2(number(4), number(5)), pack_half2(number(6), number(7))));
    });
}

}  // namespace h2o::cuda
