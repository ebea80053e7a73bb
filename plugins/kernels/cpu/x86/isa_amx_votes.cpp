// Votes by tiles of AMX: 16 keys times 16 queries. The sums of products are exact, so they are those of
// vectors.
#include "int8_votes.h"
#include "x86/amx.h"
#include "x86/simd_avx512.h"
// clang-format off: each uses the ones before
#include "x86/ints_avx512.h"
#include "simd/votes.h"
// clang-format on

namespace {

// Tiles 0 to 2 are sums of three vectors of queries, 3 has keys, and 4 to 6 have queries as they lie in
// memory: words of four numbers, 16 of them side by side.
struct VoteTiles {
    static constexpr int kKeys = kTileRows;

    static void set(int64_t d) {
        const int64_t step = tile_step(d);
        TileShapes shapes;
        for (int tile = 0; tile < 3; ++tile) shapes.set(tile, kTileRows, kTileBytes);
        shapes.set(3, kTileRows, step);
        for (int tile = 4; tile < 7; ++tile) shapes.set(tile, step / 4, kTileBytes);
        set_tiles(shapes);
    }

    template <int kVectors>
    static void score(const VoteArgs& args, int64_t key, int64_t count, float* p, Simd::Vec* top) {
        alignas(64) __m512i sums[kKeys][kVectors];
        int64_t row[kKeys];
        for (int64_t i = 0; i < kKeys; ++i) row[i] = row_of(args, key + (i < count ? i : 0));
        multiply<kVectors>(args, row, sums[0]);
        for (int64_t i = 0; i < count; ++i)
            score_key<kVectors>(args, key + i, row[i], sums[i], p + i * kVectors * kWidth, top);
    }

  private:
    // sums [kKeys][kVectors] of 16 queries each.
    template <int kVectors>
    static void multiply(const VoteArgs& args, const int64_t* row, __m512i* sums) {
        alignas(64) int8_t keys[kKeys][kTileBytes];
        constexpr int64_t kQueryBytes = 4 * kLanes;
        const int64_t step = tile_step(args.d);
        const __mmask64 some = ~uint64_t{0} >> (kTileBytes - step);
        _tile_zero(0);
        if constexpr (kVectors > 1) _tile_zero(1);
        if constexpr (kVectors > 2) _tile_zero(2);
        for (int64_t c = 0; c < args.d; c += step) {
            const char* const q = static_cast<const char*>(args.q) + c * kLanes;
            for (int64_t i = 0; i < kKeys; ++i)
                _mm512_store_si512(keys[i], _mm512_maskz_loadu_epi8(some, args.k + row[i] * args.d + c));
            finish_writes(keys);
            _tile_loadd(3, keys, kTileBytes);
            _tile_loadd(4, q, kQueryBytes);
            _tile_dpbsud(0, 3, 4);
            if constexpr (kVectors > 1) {
                _tile_loadd(5, q + kTileBytes, kQueryBytes);
                _tile_dpbsud(1, 3, 5);
            }
            if constexpr (kVectors > 2) {
                _tile_loadd(6, q + 2 * kTileBytes, kQueryBytes);
                _tile_dpbsud(2, 3, 6);
            }
        }
        constexpr int64_t kSumBytes = kVectors * kTileBytes;
        _tile_stored(0, sums, kSumBytes);
        if constexpr (kVectors > 1) _tile_stored(1, sums + 1, kSumBytes);
        if constexpr (kVectors > 2) _tile_stored(2, sums + 2, kSumBytes);
    }
};

void vote_by_tiles(const VoteArgs& args) {
    finish_writes(args.q);
    VoteTiles::set(args.d);
    vote<VoteTiles>(args);
    _tile_release();
}

}  // namespace

h2o::Int8Votes h2o::amx_votes() {
    return vote_by_tiles;
}
