// Adds the last keys of a block of rows, a few for every row and none shared, and then stores the result.
//
// Nothing is packed: a row's scores are dot products with stored keys, and its values are added when the row
// is stored.
#pragma once

#include "simd/pack.h"

namespace {

using h2o::kMostOwn;
using h2o::OwnKeysArgs;

constexpr int kDotsTogether = 4;

// Caps the scores of keys that there are.
inline void cap_own(const OwnKeysArgs& args, float* score) {
    using S = Simd;
    const S::Vec most = S::set(args.softcap), steep = S::set(-2.0f / args.softcap);
    const S::Vec absent = S::set(-__builtin_inff());
    for (int64_t at = 0; at < args.keys * kLanes; at += kWidth) {
        const S::Vec x = S::load(score + at);
        S::store(score + at, S::select_le(x, absent, absent, soft_capped(x, most, steep)));
    }
}

// score[key][row], -inf where a row has no such key. Asks for what is needed later: values, and where the
// result goes.
template <h2o_dtype kDtype, h2o_dtype kStored>
inline void score_own(const OwnKeysArgs& args, float* score) {
    using S = Simd;
    const int64_t bytes = args.d * stored_size(kStored);
    for (int64_t r = 0; r < args.rows; ++r) {
        const void* const q = args.q[r];
        fetch(args.out[r], args.d * stored_size(kDtype));
        for (int64_t key = 0; key < args.keys; key += kDotsTogether) {
            const void* k[kDotsTogether];
            S::Vec sum[kDotsTogether];
            for (int i = 0; i < kDotsTogether; ++i) {
                const int64_t at = (key + i) * kLanes + r;
                const bool seen = key + i < args.keys && args.k[at] != nullptr;
                if (seen) fetch(args.v[at], bytes);
                k[i] = seen ? args.k[at] : q;
                sum[i] = S::zero();
            }
            for (int64_t c = 0; c < args.d; c += kWidth) {
                const int count = part(c, args.d);
                const S::Vec x = load_stored(q, kDtype, c, count);
#pragma GCC unroll 4
                for (int i = 0; i < kDotsTogether; ++i)
                    sum[i] = S::fma(load_stored(k[i], kStored, c, count), x, sum[i]);
            }
            float dots[kDotsTogether];
            S::sum_four(sum, false, dots);
            for (int i = 0; i < kDotsTogether && key + i < args.keys; ++i) {
                const int64_t at = (key + i) * kLanes + r;
                const float scale = kStored == H2O_I8 ? args.scale * args.k_scales[at] : args.scale;
                score[at] = args.k[at] != nullptr ? dots[i] * scale : -__builtin_inff();
            }
        }
    }
    if (args.softcap > 0) cap_own(args, score);
}

// Scores -> the weights of the values, and keep[row], the weight of the row's sum in o, both divided by their
// total.
inline void soften_own(const OwnKeysArgs& args, float* score, float* keep) {
    using S = Simd;
    float sums[kLanes];
    for (int64_t lane = 0; lane < kLanes; lane += kWidth) {
        const S::Vec old_m = S::load(args.m + lane);
        S::Vec top = S::max(old_m, S::set(-3.0e38f));  // -inf - -inf must not become NaN
        for (int64_t key = 0; key < args.keys; ++key) top = S::max(S::load(score + key * kLanes + lane), top);
        const S::Vec kept = exp_nonpositive(S::sub(old_m, top));
        S::Vec sum = S::mul(S::load(args.l + lane), kept);
        for (int64_t key = 0; key < args.keys; ++key) {
            float* const p = score + key * kLanes + lane;
            const S::Vec e = exp_nonpositive(S::sub(S::load(p), top));
            S::store(p, e);
            sum = S::add(sum, e);
        }
        S::store(keep + lane, kept);
        S::store(sums + lane, sum);
    }
    for (int64_t r = 0; r < args.rows; ++r) {
        const float share = sums[r] > 0.0f ? 1.0f / sums[r] : 0.0f;
        keep[r] *= share;
        for (int64_t key = 0; key < args.keys; ++key) score[key * kLanes + r] *= share;
    }
}

// out[row] = keep[row] * o[:, row] + the row's weighted values.
template <h2o_dtype kDtype, h2o_dtype kStored>
inline void store_own(const OwnKeysArgs& args, const float* weight, const float* keep) {
    using S = Simd;
    for (int64_t r = 0; r < args.rows; ++r) {
        if (r % 8 == 0) {
            for (int64_t c = 0; c < args.d; c += 8) {
                const float* in[8];
                for (int64_t i = 0; i < 8; ++i) in[i] = args.o + (c + i) * kLanes + r;
                transpose_8x8(in, 1.0f, args.scratch + c, args.d);
            }
        }
        const float* const row = args.scratch + r % 8 * args.d;
        for (int64_t c = 0; c < args.d; c += kWidth) {
            const int count = part(c, args.d);
            S::Vec sum = S::mul(S::load_some(row + c, count), S::set(keep[r]));
            for (int64_t at = r; at < args.keys * kLanes; at += kLanes) {
                if (args.v[at] == nullptr) continue;
                const float share = kStored == H2O_I8 ? weight[at] * args.v_scales[at] : weight[at];
                sum = S::fma(load_stored(args.v[at], kStored, c, count), S::set(share), sum);
            }
            store_stored(args.out[r], kDtype, c, sum, count);
        }
    }
}

template <h2o_dtype kDtype, h2o_dtype kStored>
inline void finish_rows_of(const OwnKeysArgs& args) {
    float score[kMostOwn * kLanes], keep[kLanes];
    for (int64_t i = 0; i < args.keys * kLanes; ++i) score[i] = -__builtin_inff();  // of lanes not in use
    score_own<kDtype, kStored>(args, score);
    soften_own(args, score, keep);
    store_own<kDtype, kStored>(args, score, keep);
}

void finish_rows(const OwnKeysArgs& args) {
    const bool half = args.dtype == H2O_F16;
    if (args.stored == H2O_I8) {
        half ? finish_rows_of<H2O_F16, H2O_I8>(args) : finish_rows_of<H2O_F32, H2O_I8>(args);
    } else if (args.stored == H2O_F16) {
        half ? finish_rows_of<H2O_F16, H2O_F16>(args) : finish_rows_of<H2O_F32, H2O_F16>(args);
    } else {
        finish_rows_of<H2O_F32, H2O_F32>(args);
    }
}

}  // namespace
