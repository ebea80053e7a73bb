// Keys and queries as int8 with a scale a row, for votes: a key is then one line of memory, wherever it is.
#pragma once

#include "int8_votes.h"
#include "stored_rows.h"
#include "sweep.h"
#include "x86/processor.h"

namespace h2o {

// Those of the context; none where votes are to be float32.
inline Int8Votes int8_votes(const h2o_cpu* context) {
#if defined(__x86_64__)
    const BlockAttention* const now = context->attention;
    if (now == amx_bfloat16()) {
        static const bool right = has_amx(kAmxInt8) && amx_int8_is_right();
        if (right) return amx_votes();
    }
    const bool rounds = now == avx512_bfloat16() || now == amx_bfloat16() || now == avx512_int16();
    if (rounds && has_avx512_vnni()) return avx512_votes();
    if (now == avx2_int16()) return avx2_votes();
#endif
    (void)context;
    return nullptr;
}

// Must be inlined: GCC drops calls of a function that only prefetches.
__attribute__((always_inline)) inline void ask_for(const char* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

// The cache's first `rows` rows of every key/value head.
struct Int8Keys {
    static constexpr int64_t kRowsABlock = 64;  // that one thread packs at a time
    static constexpr int64_t kRowsAhead = 8;    // that are asked for meanwhile

    int64_t heads;     // that keys have
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
        return {shape.kv_heads,
                rows,
                shape.head_size,
                carver.take<int8_t>(all * shape.head_size),
                carver.take<KeyScale>(all),
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

    // The wanted rows of block `index`, of all heads, which lie side by side.
    void pack(const h2o_cpu* context, const h2o_shape& shape, const h2o_kv& kv, int64_t index) const {
        const int64_t first = index * kRowsABlock, stop = std::min(first + kRowsABlock, rows);
        for (int64_t row = first; row < stop; ++row) {
            for (int64_t head = 0; head < heads; ++head) {
                const KeyRows from = cache_rows(shape, head, keys_alone(kv), nullptr, rows);
                const int64_t at = head * rows + row, ahead = row + kRowsAhead;
                if (ahead < rows && wanted[at + kRowsAhead])
                    ask_for(from.key(ahead), d * element_size(kv.dtype));
                if (wanted[at]) pack_key(context, from, at, row);
            }
        }
    }

  private:
    void pack_key(const h2o_cpu* context, const KeyRows& from, int64_t at, int64_t row) const {
        int8_t* const out = numbers + at * d;
        scales[at].scale =
            context->kernels->to_int8(from.key(row), from.kv.dtype, d, out) * from.key_scale(row);
        int32_t sum = 0;
        for (int64_t c = 0; c < d; ++c) sum += out[c];
        scales[at].excess = kQueryExcess * sum;
    }
};

// One thread's block of queries.
struct Int8Block {
    char* q;        // [d/4][R][4]
    float* scales;  // [R]
    int8_t* row;    // [d]

    static Int8Block carve(Carver& carver, int64_t d) {
        return {carver.take<char>(d * kLanes), carver.take<float>(kLanes), carver.take<int8_t>(d)};
    }

    void pack(const h2o_cpu* context, const Sweep& votes, int64_t begin, int64_t used) const {
        const int64_t d = votes.d, bytes = d * element_size(votes.dtype);
        const auto query = [&](int64_t lane) { return votes.q + votes.at(begin + lane) * bytes; };
        for (int64_t lane = 0; lane < used; ++lane) ask_for(query(lane), bytes);
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            if (lane < used) {
                const float scale = context->kernels->to_int8(query(lane), votes.dtype, d, row);
                scales[lane] = votes.scale * scale * 127 / kQueryMost;
            } else {
                scales[lane] = 0.0f;
                std::memset(row, 0, static_cast<size_t>(d));
            }
            put_row(d, lane);
        }
    }

  private:
    // Words of four numbers of `row`, rounded to 7 bits.
    void put_row(int64_t d, int64_t lane) const {
        for (int64_t c = 0; c < d; ++c) {
            const int product = row[c] * kQueryMost, half = product < 0 ? -63 : 63;  // of 127
            row[c] = static_cast<int8_t>((product + half) / 127 + kQueryExcess);
        }
        for (int64_t c = 0; c < d; c += 4) std::memcpy(q + c * kLanes + lane * 4, row + c, 4);
    }
};

// Adds the votes of all of a sweep's queries for its keys, which are rows of `keys`, to its sums.
inline void vote_int8(const h2o_cpu* context, Sweep votes, const SweepScratch& scratch,
                      const Int8Block& block, const Int8Keys::Head& keys) {
    const Int8Votes by = int8_votes(context);
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
        args.voted = votes.voted;
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
        args.sums = votes.votes;
        by(args);
    }
}

}  // namespace h2o
