// Upper bounds of the scores of a page's keys: positive . high + negative . low.
//
// Bounds are stored like rows of a cache and read as in decode: four pages at a time, head after head.
#pragma once

#include "simd/decode.h"

namespace {

using h2o::BoundsArgs;

// Bounds of kPages pages from `page` on, for all queries of a key/value head.
template <int kPages>
inline void bound_pages(const BoundsArgs& args, int64_t head, int64_t page) {
    using S = Simd;
    const int64_t width = h2o::round_up(args.d, 16), row = args.kv_heads * args.d;
    const float* const low = args.low + page * row + head * args.d;
    const float* const high = args.high + page * row + head * args.d;
    for (int64_t h = head * args.group; h < (head + 1) * args.group; ++h) {
        const float* const positive = args.positive + h * width;
        const float* const negative = args.negative + h * width;
        S::Vec sum[kPages];
        for (int i = 0; i < kPages; ++i) sum[i] = S::zero();
        for (int64_t c = 0; c < args.d; c += kWidth) {
            const int part_of = part(c, args.d);
            const S::Vec up = S::load(positive + c), down = S::load(negative + c);
#pragma GCC unroll 4
            for (int i = 0; i < kPages; ++i)
                sum[i] = S::fma(S::load_some(high + i * row + c, part_of), up, sum[i]);
#pragma GCC unroll 4
            for (int i = 0; i < kPages; ++i)
                sum[i] = S::fma(S::load_some(low + i * row + c, part_of), down, sum[i]);
        }
        float* const out = args.out + h * args.pitch + page;
        if constexpr (kPages == 4) {
            S::sum_four(sum, false, out);
        } else {
            for (int i = 0; i < kPages; ++i) out[i] = S::sum(sum[i]);
        }
    }
}

void bounds(const BoundsArgs& args) {
    const int64_t row = args.kv_heads * args.d, share = kTogether * args.d;  // floats
    const int64_t ahead = h2o::round_up(kAhead / (row * 4) + 1, kTogether);
    const int64_t together = args.pages / kTogether * kTogether;
    for (int64_t page = 0; page < together; page += kTogether) {
        for (int64_t head = 0; head < args.kv_heads; ++head) {
            if (page + ahead < together) {
                const int64_t from = (page + ahead) * row + head * share;
                fetch(args.low + from, share * 4);
                fetch(args.high + from, share * 4);
            }
            bound_pages<kTogether>(args, head, page);
        }
    }
    for (int64_t page = together; page < args.pages; ++page) {
        for (int64_t head = 0; head < args.kv_heads; ++head) bound_pages<1>(args, head, page);
    }
}

}  // namespace
