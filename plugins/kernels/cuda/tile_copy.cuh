// Tiles of half-precision rows in shared memory: where they lie, how they get there, where ldmatrix finds
// them.
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

// Rows of D halves, one behind the other, without padding. A row is D / 8 pieces of 16 bytes, and the 32
// banks hold 8 pieces side by side. ldmatrix reads one piece of 8 consecutive rows at a time: its place
// within the row is flipped by the row, so that these 8 pieces lie in different banks for every D that is a
// multiple of 16.
template <int D>
struct TileRows {
    static constexpr int kPieces = D / 8;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kGroup = largest_power_of_two_in(kPieces, 8);  // pieces that change places
    static constexpr int kCycle = 8 / kGroup;  // rows that lie in different banks as it is

    static constexpr __host__ __device__ int flip(int row) { return row / kCycle % kGroup; }
    static constexpr __host__ __device__ int offset(int row, int piece) {
        return row * kRowBytes + (piece ^ flip(row)) * 16;
    }
    // Whether any piece of 8 rows lies in 8 different places of the 128 bytes that all banks hold.
    static constexpr bool spread() {
        for (int piece = 0; piece < kPieces; ++piece) {
            unsigned met = 0;
            for (int row = 0; row < 8; ++row) met |= 1u << offset(row, piece) / 16 % 8;
            if (met != 0xffu) return false;
        }
        return true;
    }
};

// What one lane hands to ldmatrix, over and over: the piece `odd` of every pair of pieces, of row `row` and
// of rows a multiple of 8 later. All such rows are flipped alike, so that the few places it can have are
// worked out once.
template <int D>
class LanePieces {
  public:
    __device__ __forceinline__ LanePieces(shared_t tile, int row, int odd) {
#pragma unroll
        for (int i = 0; i < kPlaces; ++i)
            places_[i] = tile + row * TileRows<D>::kRowBytes + ((i * 2 + odd) ^ TileRows<D>::flip(row)) * 16;
    }
    // Pair `pair`, `rows` rows later; both known to the compiler.
    __device__ __forceinline__ shared_t at(int rows, int pair) const {
        return places_[pair % kPlaces] + rows * TileRows<D>::kRowBytes + pair / kPlaces * kPlaces * 32;
    }

  private:
    static constexpr int kPlaces = TileRows<D>::kGroup > 1 ? TileRows<D>::kGroup / 2 : 1;
    static_assert(TileRows<D>::kGroup > 1, "pairs of pieces stay together");
    static_assert(TileRows<D>::spread(), "no ldmatrix meets a bank twice");
    shared_t places_[kPlaces];
};

// ROWS rows of D halves. pointer_of(row) is null for rows that are to be zero; `somewhere` is any address
// that may be named in their place.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows_async(shared_t to, const half* somewhere, F&& pointer_of) {
    constexpr int kPieces = TileRows<D>::kPieces;
    static_assert(ROWS * kPieces % THREADS == 0, "every thread copies equally many pieces");
#pragma unroll 4  // more keeps too many addresses in registers
    for (int i = 0; i < ROWS * kPieces / THREADS; ++i) {
        const int index = i * THREADS + static_cast<int>(threadIdx.x);
        const int row = index / kPieces, piece = index % kPieces;
        const half* from = pointer_of(row);
        copy16_async(to + TileRows<D>::offset(row, piece), (from ? from : somewhere) + piece * 8,
                     from != nullptr);
    }
}

// Rows row_of(i) of a set, negative ones as zeros.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows(shared_t to, const SetRows<half>& from, F&& row_of) {
    copy_rows_async<D, ROWS, THREADS>(to, from.first, [&](int i) -> const half* {
        const int row = row_of(i);
        return row < 0 ? nullptr : from.row(row);
    });
}

// Integers become halves on the way, which a thread has to wait for.
template <int D, int ROWS, int THREADS, class F>
__device__ __forceinline__ void copy_rows(shared_t to, const SetRows<int8_t>& from, F&& row_of) {
    constexpr int kPieces = TileRows<D>::kPieces;
#pragma unroll 4
    for (int i = 0; i < ROWS * kPieces / THREADS; ++i) {
        const int index = i * THREADS + static_cast<int>(threadIdx.x);
        const int local = index / kPieces, piece = index % kPieces, row = row_of(local);
        uint4 halves = make_uint4(0, 0, 0, 0);
        if (row >= 0) {
            const uint64_t eight = *reinterpret_cast<const uint64_t*>(from.row(row) + piece * 8);
            const float scale = from.scale(row);
            const auto number = [&](int at) {
                return static_cast<float>(static_cast<int8_t>(eight >> (8 * at))) * scale;
            };
            halves = make_uint4(pack_half2(number(0), number(1)), pack_half2(number(2), number(3)),
                                pack_half2(number(4), number(5)), pack_half2(number(6), number(7)));
        }
        store16(to + TileRows<D>::offset(local, piece), halves);
    }
}

}  // namespace h2o::cuda
