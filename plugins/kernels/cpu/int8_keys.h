// Keys and queries as int8 with a scale a row, for votes: a key is then one line of memory, wherever it is.
#pragma once

#include "int8_votes.h"
#include "stored_rows.h"
#include "sweep.h"

namespace h2o {

using Int8Votes = void (*)(const VoteArgs& args);

// Null where there are no such products, or votes are to be float32.
inline Int8Votes int8_votes(const h2o_cpu* context) {
#if defined(__x86_64__)
    const BlockAttention* const now = context->attention;
    const bool rounds = now == avx512_bfloat16() || now == amx_bfloat16() || now == avx512_int16();
    if (rounds && __builtin_cpu_supports("avx512vnni")) return avx512_votes();
#endif
    (void)context;
    return nullptr;
}

// The cache's first `rows` rows of every key/value head.
struct Int8Keys {
    static constexpr int64_t kRowsABlock = 256;  // that one thread packs at a time

    int64_t rows;      // of the cache, from the first on
    int64_t d;         // numbers of a key
    int8_t* numbers;   // [kv_heads][rows][d]
    KeyScale* scales;  // [kv_heads][rows]
    uint8_t* wanted;   // [kv_heads][rows] whether anyone looks at it

    struct Head {
        const int8_t* numbers;   // [rows][d]
        const KeyScale* scales;  // [rows]
    };
    Head head(int64_t i) const { return {numbers + i * rows * d, scales + i * rows}; }
    int64_t blocks() const { return (rows + kRowsABlock - 1) / kRowsABlock; }

    static Int8Keys carve(Carver& carver, const h2o_shape& shape, int64_t rows) {
        const int64_t all = shape.kv_heads * rows;
        return {rows, shape.head_size, carver.take<int8_t>(all * shape.head_size), carver.take<KeyScale>(all),
                carver.take<uint8_t>(all)};
    }

    // All rows of a head, or none yet.
    void want(int64_t head, bool all) const {
        std::memset(wanted + head * rows, all, static_cast<size_t>(rows));
    }
    // Rows [first, end).
    void want(int64_t head, int64_t first, int64_t end) const {
        std::memset(wanted + head * rows + first, 1, static_cast<size_t>(end - first));
    }
    void want(int64_t head, const int32_t* list, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) wanted[head * rows + list[i]] = 1;
    }

    // Rows of block `index`, counted through all heads, that are wanted.
    void pack(const h2o_cpu* context, const h2o_shape& shape, const h2o_kv& kv, int64_t index) const {
        const int64_t head = index / blocks(), first = index % blocks() * kRowsABlock;
        const KeyRows from = cache_rows(shape, head, keys_alone(kv), nullptr, rows);
        for (int64_t row = first; row < std::min(first + kRowsABlock, rows); ++row) {
            const int64_t at = head * rows + row;
            if (!wanted[at]) continue;
            int8_t* const out = numbers + at * d;
            scales[at].scale =
                context->kernels->to_int8(from.key(row), kv.dtype, d, out) * from.key_scale(row);
            int32_t sum = 0;
            for (int64_t c = 0; c < d; ++c) sum += out[c];
            scales[at].excess = 128 * sum;
        }
    }
};

// One thread's block of queries.
struct Int8Block {
    uint8_t* q;     // [d/4][R][4]
    float* scales;  // [R]
    int8_t* row;    // [d]

    static Int8Block carve(Carver& carver, int64_t d) {
        return {carver.take<uint8_t>(d * kLanes), carver.take<float>(kLanes), carver.take<int8_t>(d)};
    }

    void pack(const h2o_cpu* context, const Sweep& votes, int64_t begin, int64_t used) const {
        const int64_t d = votes.d;
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            scales[lane] = 0.0f;
            if (lane < used) {
                const char* const from = votes.q + votes.at(begin + lane) * d * element_size(votes.dtype);
                scales[lane] = votes.scale * context->kernels->to_int8(from, votes.dtype, d, row);
            }
            for (int64_t c = 0; c < d; ++c)
                q[(c / 4 * kLanes + lane) * 4 + c % 4] =
                    static_cast<uint8_t>(lane < used ? row[c] + 128 : 128);
        }
    }
};

// Adds the column sums of all of a sweep's queries over its keys, which are rows of `keys`, to sums
// [round_up(keys, P)].
inline void vote_int8(const h2o_cpu* context, Sweep votes, const SweepScratch& scratch,
                      const Int8Block& block, const Int8Keys::Head& keys, float* sums) {
    if (votes.rows() > kLanes && votes.rows() <= 64) votes.block_rows = 32;  // equal blocks, not 48 and 16
    for (int64_t i = 0; i < votes.blocks(); ++i) {
        block.pack(context, votes, i * votes.block_rows, votes.lanes(i));
        float visible[kLanes];
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const int64_t row = i * votes.block_rows + std::min(lane, votes.lanes(i) - 1);
            visible[lane] = static_cast<float>(votes.visible(row));
        }
        VoteArgs args{};
        args.d = votes.d;
        args.keys = votes.total_keys;
        args.unmasked = votes.visible(i * votes.block_rows);
        args.visible = visible;
        args.rows = votes.keys.index;
        args.lanes = votes.lanes(i);
        args.q = block.q;
        args.scales = block.scales;
        args.k = keys.numbers;
        args.k_scales = keys.scales;
        args.p = scratch.p;
        args.m = scratch.m;
        args.l = scratch.l;
        args.tops = scratch.tops;
        args.sums = sums;
        int8_votes(context)(args);
    }
}

}  // namespace h2o
