// The softmax of one block of query rows over packed keys: the inner loop of every operator except decode.
//
// The rows of a block are the vector lanes. A group's query heads are rows like any others. So both products
// are one matrix product per key/value head, and maxima and sums need no work across lanes.
#pragma once

namespace {

using h2o::BlockArgs;
using h2o::kColsumLanes;
using h2o::kKeyStep;

// Hides from each lane the keys at or after its `visible`.
template <int kRows>
inline void mask_panel(int64_t first_key, const float* visible, float* p) {
    using S = Simd;
    const S::Vec hidden = S::set(-__builtin_inff());
    for (int64_t i = 0; i < kPanel; ++i, p += kLanes) {
        const S::Vec next = S::set(static_cast<float>(first_key + i + 1));
        for (int64_t lane = 0; lane < kRows; lane += kWidth) {
            S::store(p + lane, S::select_le(next, S::load(visible + lane), S::load(p + lane), hidden));
        }
    }
}

// Hides from each lane the keys before its `first`.
template <int kRows>
inline void hide_panel(int64_t first_key, const float* first, float* p) {
    using S = Simd;
    const S::Vec hidden = S::set(-__builtin_inff());
    for (int64_t i = 0; i < kPanel; ++i, p += kLanes) {
        const S::Vec key = S::set(static_cast<float>(first_key + i));
        for (int64_t lane = 0; lane < kRows; lane += kWidth) {
            S::store(p + lane, S::select_le(S::load(first + lane), key, S::load(p + lane), hidden));
        }
    }
}

// Caps the scores of a panel.
template <int kRows>
inline void cap_panel(float cap, float* p) {
    using S = Simd;
    const S::Vec most = S::set(cap), steep = S::set(-2.0f / cap);
    for (int64_t i = 0; i < kPanel; ++i, p += kLanes) {
        for (int64_t lane = 0; lane < kRows; lane += kWidth)
            S::store(p + lane, soft_capped(S::load(p + lane), most, steep));
    }
}

template <int kRows>
inline void add_panel(const float* bias, float* p) {
    using S = Simd;
    for (int64_t i = 0; i < kPanel; ++i, p += kLanes, bias += kLanes) {
        for (int64_t lane = 0; lane < kRows; lane += kWidth)
            S::store(p + lane, S::add(S::load(p + lane), S::load(bias + lane)));
    }
}

// Before scores: shapes of the tiles that AMX multiplies.
template <class Numbers>
inline void set_tiles_of_keys(const BlockArgs& args) {
    if constexpr (Numbers::kTiles) Numbers::set(Numbers::words_of(args.d / Numbers::kPair));
}

// After scores, before values.
template <class Numbers>
inline void set_tiles_of_values(const BlockArgs& args) {
    if constexpr (Numbers::kTiles) {
        const bool same = Numbers::words_of(args.d / Numbers::kPair) == Numbers::kMostWords;
        if (args.v != nullptr && !same) Numbers::set(Numbers::kMostWords);
    }
}

// p = scores of keys begin ... end - 1, and m = their running maximum. Key panels reach past `end`: these
// extra rows of p are never read.
template <class Numbers, int kRows, bool kPacked = true>
inline void score(const BlockArgs& args, int64_t begin, int64_t end) {
    using S = Simd;
    constexpr int kCount = kRows / kWidth;
    S::Vec top[kCount];
    for (int v = 0; v < kCount; ++v) top[v] = S::load(args.m + v * kWidth);
    const int64_t depth = args.d / Numbers::kPair, words = depth + Numbers::kScales;
    for (int64_t key = begin; key < end; key += kPanel) {
        float* p = args.p + key * kLanes;
        if constexpr (Numbers::kTiles) {
            if ((key - begin) % (2 * kPanel) == 0)
                Numbers::template score<kRows>(depth, args.q, args.k + key * words, end - key, p);
        } else if constexpr (kPacked) {
            multiply_panel<Numbers, false, kRows>(depth, args.q, args.k + key * words, Packed{}, p);
        } else {
            // The very first keys have not been prefetched.
            const float* const keys = args.k + key * args.stride;
            const int64_t next = args.fresh && key + kPanel < end ? kPanel * args.stride : 0;
            const Keys form{{args.stride, reinterpret_cast<const char*>(keys + next), next / 16}};
            multiply_panel<Numbers, false, kRows>(depth, args.q, keys, form, p);
        }
        if (args.softcap > 0) cap_panel<kRows>(args.softcap, p);
        if (key + kPanel > args.unmasked) mask_panel<kRows>(key, args.visible, p);
        if (args.first != nullptr && key < args.hiding) hide_panel<kRows>(key, args.first, p);
        if (args.bias != nullptr) add_panel<kRows>(args.bias + key * kLanes, p);
        const int64_t rows = end - key < kPanel ? end - key : kPanel;
        for (int64_t i = 0; i < rows; ++i, p += kLanes) {
#pragma GCC unroll 12
            for (int v = 0; v < kCount; ++v) top[v] = S::max(S::load(p + v * kWidth), top[v]);
        }
    }
    for (int v = 0; v < kCount; ++v) S::store(args.m + v * kWidth, top[v]);
}

// p = exp(p - m) for keys [0, keys) of p, whose sums are added to l, in kCount vectors of lanes.
template <int kCount>
__attribute__((always_inline)) inline void exponentiate_tile(int64_t keys, const float* m, float* row,
                                                             float* l) {
    using S = Simd;
    S::Vec top[kCount], sum[kCount];
    for (int j = 0; j < kCount; ++j) {
        // A row that has seen no key yet has m = -inf; -inf - -inf must not become NaN.
        top[j] = S::max(S::load(m + j * kWidth), S::set(-3.0e38f));
        sum[j] = S::zero();
    }
    for (int64_t key = 0; key < keys; ++key, row += kLanes) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) {
            const S::Vec e = exp_nonpositive(S::sub(S::load(row + j * kWidth), top[j]));
            S::store(row + j * kWidth, e);
            sum[j] = S::add(sum[j], e);
        }
    }
    for (int j = 0; j < kCount; ++j) S::store(l + j * kWidth, S::add(S::load(l + j * kWidth), sum[j]));
}

// Three vectors at a time hide the latency of exp.
template <int kRows>
inline void exponentiate(int64_t keys, const float* m, float* p, float* l) {
    constexpr int kWhole = kRows / kTileLanes * kTileLanes, kRest = (kRows - kWhole) / kWidth;
    for (int64_t lane = 0; lane < kWhole; lane += kTileLanes)
        exponentiate_tile<kTileVectors>(keys, m + lane, p + lane, l + lane);
    if constexpr (kRest > 0) exponentiate_tile<kRest>(keys, m + kWhole, p + kWhole, l + kWhole);
}

// Rescales l and o from the old maximum to the new one.
template <int kRows>
inline void rescale(const BlockArgs& args, const float* old_m) {
    using S = Simd;
    for (int64_t lane = 0; lane < kRows; lane += kWidth) {
        const S::Vec top = S::max(S::load(args.m + lane), S::set(-3.0e38f));
        const S::Vec factor = exp_nonpositive(S::sub(S::load(old_m + lane), top));
        S::store(args.l + lane, S::mul(S::load(args.l + lane), factor));
        if (args.v == nullptr) continue;
        float* o = args.o + lane;
        for (int64_t c = 0; c < args.dv; ++c, o += kLanes) S::store(o, S::mul(S::load(o), factor));
    }
}

template <int kRows>
inline void start(const BlockArgs& args) {
    using S = Simd;
    for (int64_t lane = 0; lane < kRows; lane += kWidth) {
        S::store(args.m + lane, S::set(-__builtin_inff()));
        S::store(args.l + lane, S::zero());
    }
}

// colsum[key] += sum over rows of p[key][row] * weight[row], for `keys` keys, as kColsumLanes partial sums.
template <int kRows>
inline void add_weighted(int64_t keys, const float* p, const float* weight, float* colsum) {
    using S = Simd;
    constexpr int kSums = static_cast<int>(kColsumLanes) / kWidth, kShares = kRows / kWidth;
    S::Vec share[kShares];
    for (int v = 0; v < kShares; ++v) share[v] = S::load(weight + v * kWidth);
    for (int64_t key = 0; key < keys; ++key, p += kLanes, colsum += kColsumLanes) {
#pragma GCC unroll 4
        for (int s = 0; s < kSums; ++s) {
            S::Vec sum = S::load(colsum + s * kWidth);
#pragma GCC unroll 3
            for (int v = s; v < kShares; v += kSums) sum = S::fma(S::load(p + v * kWidth), share[v], sum);
            S::store(colsum + s * kWidth, sum);
        }
    }
}

// 1 / l of the rows in use, 0 of the others.
template <int kRows>
inline void invert(const BlockArgs& args, float* inverse) {
    for (int64_t r = 0; r < kRows; ++r) inverse[r] = r < args.lanes ? 1.0f / args.l[r] : 0.0f;
}

// Column sums only. A step's probabilities are computed while its scores are in L1, relative to the maximum
// so far; the step's weight includes the correction to the final maximum. `score` and `exponentiate` get a
// step's first key and number of keys, and `add` also the weights of its lanes, [R].
template <int kRows, class Score, class Exponentiate, class Add>
__attribute__((always_inline)) inline void vote_by_steps(const BlockArgs& args, Score score,
                                                         Exponentiate exponentiate, Add add) {
    using S = Simd;
    const auto each_step = [&args](auto run) {
        float* top = args.tops;
        for (int64_t key = 0; key < args.keys; key += kKeyStep, top += kLanes)
            run(key, args.keys - key < kKeyStep ? args.keys - key : kKeyStep, top);
    };
    start<kRows>(args);
    each_step([&](int64_t key, int64_t keys, float* top) {
        float before[kRows];
        __builtin_memcpy(before, args.m, sizeof before);
        score(key, keys);
        rescale<kRows>(args, before);
        exponentiate(key, keys);
        __builtin_memcpy(top, args.m, sizeof before);
    });
    float inverse[kRows], weight[kRows];
    invert<kRows>(args, inverse);
    each_step([&](int64_t key, int64_t keys, const float* top) {
        for (int64_t lane = 0; lane < kRows; lane += kWidth) {
            const S::Vec last = S::max(S::load(args.m + lane), S::set(-3.0e38f));
            const S::Vec lacks = exp_nonpositive(S::sub(S::load(top + lane), last));
            S::store(weight + lane, S::mul(lacks, S::load(inverse + lane)));
        }
        add(key, keys, weight);
    });
}

template <class Numbers, int kRows>
inline void vote(const BlockArgs& args) {
    set_tiles_of_keys<Numbers>(args);
    vote_by_steps<kRows>(
        args, [&](int64_t key, int64_t keys) { score<Numbers, kRows>(args, key, key + keys); },
        [&](int64_t key, int64_t keys) { exponentiate<kRows>(keys, args.m, args.p + key * kLanes, args.l); },
        [&](int64_t key, int64_t keys, const float* weight) {
            add_weighted<kRows>(keys, args.p + key * kLanes, weight, args.colsum + key * kColsumLanes);
        });
}

// A step's probabilities in words of two keys, [keys / 2, rounded up][R]. Sums are over unrounded values, and
// p is unchanged unless `kKeep`.
template <class Numbers, int kCount, bool kKeep>
__attribute__((always_inline)) inline void exponentiate_pairs_tile(int64_t keys, const float* m, float* row,
                                                                   float* l, float* words) {
    using S = Simd;
    S::Vec top[kCount], sum[kCount];
    for (int j = 0; j < kCount; ++j) {
        top[j] = S::max(S::load(m + j * kWidth), S::set(-3.0e38f));
        sum[j] = S::zero();
    }
    for (int64_t key = 0; key < keys; key += 2, row += 2 * kLanes, words += kLanes) {
#pragma GCC unroll 3
        for (int j = 0; j < kCount; ++j) {
            const S::Vec first = exp_to_round(S::sub(S::load(row + j * kWidth), top[j]));
            S::Vec second = S::zero();
            if (key + 1 < keys) second = exp_to_round(S::sub(S::load(row + kLanes + j * kWidth), top[j]));
            if constexpr (kKeep) {
                S::store(row + j * kWidth, first);
                if (key + 1 < keys) S::store(row + kLanes + j * kWidth, second);
            }
            S::store(words + j * kWidth, Numbers::join(first, second));
            sum[j] = S::add(sum[j], S::add(first, second));
        }
    }
    for (int j = 0; j < kCount; ++j) S::store(l + j * kWidth, S::add(S::load(l + j * kWidth), sum[j]));
}

template <class Numbers, int kRows, bool kKeep>
inline void exponentiate_pairs(int64_t keys, const float* m, float* p, float* l, float* words) {
    constexpr int kWhole = kRows / kTileLanes * kTileLanes, kRest = (kRows - kWhole) / kWidth;
    for (int64_t lane = 0; lane < kWhole; lane += kTileLanes)
        exponentiate_pairs_tile<Numbers, kTileVectors, kKeep>(keys, m + lane, p + lane, l + lane,
                                                              words + lane);
    if constexpr (kRest > 0)
        exponentiate_pairs_tile<Numbers, kRest, kKeep>(keys, m + kWhole, p + kWhole, l + kWhole,
                                                       words + kWhole);
}

// One step's probabilities in the layout of the second product.
template <class Numbers, int kRows>
struct Weights {
    static constexpr bool kRounded = Numbers::kPair > 1;
    alignas(64) float words[kRounded ? kKeyStep / 2 * kLanes : 1];

    const float* make(const BlockArgs& args, float* p, int64_t keys) {
        if constexpr (kRounded) {
            if (args.v != nullptr && args.colsum == nullptr) {
                exponentiate_pairs<Numbers, kRows, false>(keys, args.m, p, args.l, words);
                return words;
            }
            if (args.v != nullptr) {
                exponentiate_pairs<Numbers, kRows, true>(keys, args.m, p, args.l, words);
                return words;
            }
        }
        exponentiate<kRows>(keys, args.m, p, args.l);
        return p;
    }
};

// o (+)= values weighted with `weights`, for `keys` keys from `key` on.
template <class Numbers, bool kAdd, int kRows, bool kPacked>
inline void weigh(const BlockArgs& args, const float* weights, int64_t key, int64_t keys) {
    constexpr int kPair = Numbers::kPair;
    const int64_t depth = (keys + kPair - 1) / kPair;
    if constexpr (Numbers::kTiles) {
        return Numbers::template weigh<kAdd, kRows>(depth, weights, args.v + key / kPair, args.v_keys / kPair,
                                                    h2o::round_up(args.dv, kPanel), args.o);
    }
    for (int64_t c = 0; c < args.dv; c += kPanel) {
        float* const o = args.o + c * kLanes;
        if constexpr (kPacked) {
            const float* const panel = args.v + (c * args.v_keys + key * kPanel) / kPair;
            multiply_panel<Numbers, kAdd, kRows>(depth, weights, panel, Packed{}, o);
        } else {
            const int64_t lines = args.ahead_bytes * kPanel / (args.dv * 64);
            const Values form{{args.stride, args.ahead + c / kPanel * lines * 64, lines}};
            multiply_panel<Numbers, kAdd, kRows>(depth, weights, args.v + key * args.stride + c, form, o);
        }
    }
}

// The rows that will be written are rarely in the first caches: each of `steps` asks for some of them.
__attribute__((always_inline)) inline void fetch_out(const BlockArgs& args, int64_t step, int64_t steps) {
    if (args.out == nullptr) return;
    const int64_t end = args.lanes * (step + 1) / steps;
    for (int64_t row = args.lanes * step / steps; row < end; ++row) fetch(args.out[row], args.out_bytes);
}

template <class Numbers, int kRows, bool kPacked>
inline void attend_rows(const BlockArgs& args) {
    if constexpr (kPacked) {
        if (args.tops != nullptr) return vote<Numbers, kRows>(args);
    }
    float old_m[kRows];
    if (args.fresh) {
        start<kRows>(args);
    } else {
        __builtin_memcpy(old_m, args.m, sizeof old_m);
    }
    set_tiles_of_keys<Numbers>(args);
    score<Numbers, kRows, kPacked>(args, 0, args.keys);
    set_tiles_of_values<Numbers>(args);
    if (!args.fresh) rescale<kRows>(args, old_m);
    using Values = typename Numbers::Values;
    Weights<Values, kRows> weights;
    for (int64_t key = 0; key < args.keys; key += kKeyStep) {
        const int64_t step = args.keys - key < kKeyStep ? args.keys - key : kKeyStep;
        fetch_out(args, key / kKeyStep, (args.keys + kKeyStep - 1) / kKeyStep);
        const float* const weighed = weights.make(args, args.p + key * kLanes, step);
        if (args.v == nullptr) continue;
        if (args.fresh && key == 0) {
            weigh<Values, false, kRows, kPacked>(args, weighed, key, step);
        } else {
            weigh<Values, true, kRows, kPacked>(args, weighed, key, step);
        }
    }
    if (args.colsum == nullptr) return;
    float inverse[kRows];
    invert<kRows>(args, inverse);
    add_weighted<kRows>(args.keys, args.p, inverse, args.colsum);
}

template <class Numbers, bool kPacked>
inline void attend_form(const BlockArgs& args) {
    if (args.rows == 16) {
        attend_rows<Numbers, 16, kPacked>(args);
    } else if (args.rows == 32) {
        attend_rows<Numbers, 32, kPacked>(args);
    } else {
        attend_rows<Numbers, static_cast<int>(kLanes), kPacked>(args);
    }
}

// columns[key] = sum over r of weight[r] * p[key][r]; the same values are added to distances[r - key].
template <int kRows>
inline void line_sums_of(const float* p, int64_t keys, const float* weight, float* columns,
                         float* distances) {
    using S = Simd;
    constexpr int kCount = kRows / kWidth;
    S::Vec share[kCount];
    for (int v = 0; v < kCount; ++v) share[v] = S::load(weight + v * kWidth);
    for (int64_t key = 0; key < keys; ++key, p += kLanes, --distances) {
        S::Vec sum = S::zero();
#pragma GCC unroll 12
        for (int v = 0; v < kCount; ++v) {
            const S::Vec x = S::mul(S::load(p + v * kWidth), share[v]);
            S::store(distances + v * kWidth, S::add(S::load(distances + v * kWidth), x));
            sum = S::add(sum, x);
        }
        columns[key] = S::sum(sum);
    }
}

inline void line_sums(const float* p, int64_t keys, int64_t rows, const float* weight, float* columns,
                      float* distances) {
    if (rows == 16) {
        line_sums_of<16>(p, keys, weight, columns, distances);
    } else if (rows == 32) {
        line_sums_of<32>(p, keys, weight, columns, distances);
    } else {
        line_sums_of<static_cast<int>(kLanes)>(p, keys, weight, columns, distances);
    }
}

}  // namespace
