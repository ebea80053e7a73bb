// Votes: the probabilities that a block's rows give to keys, summed over the rows. The softmax's denominator
// is estimated: of the keys that get sums, the first kKeyStep count once, and of each later kKeyStep a sample
// counts for all. Keys behind them, which get no sums, count once. A probability is at most 1.
//
// A score is computed again in the second pass, so that a step's scores never leave L1.
#pragma once

#include "simd/tile.h"

namespace {

constexpr int64_t kSampleFirst = 56, kSampled = 16;  // of each kKeyStep keys
constexpr float kSampleWeight = static_cast<float>(kKeyStep) / kSampled;

inline int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// `score(begin, end)` writes the scores of keys, raises args.m to their maximum and returns how many rows it
// wrote, of which those that are no key of them have -inf. `exponentiate(rows)` adds exp(score - m) to
// args.l. `add(begin, keys, offset)` adds exp(score - offset), at most 1 for each of the lanes, to the keys'
// sums.
template <int kRows, class Score, class Exponentiate, class Add>
__attribute__((always_inline)) inline void vote_by_sample(const BlockArgs& args, Score score,
                                                          Exponentiate exponentiate, Add add) {
    const auto count = [&](int64_t begin, int64_t end) {
        float before[kRows];
        __builtin_memcpy(before, args.m, sizeof before);
        const int64_t rows = score(begin, end);
        rescale<kRows>(args, before);
        exponentiate(rows);
    };
    const int64_t voted = args.voted;
    start<kRows>(args);
    for (int64_t key = kKeyStep + kSampleFirst; key < voted; key += kKeyStep)
        count(key, earlier(key + kSampled, voted));
    for (int64_t r = 0; r < kRows; ++r) args.l[r] *= kSampleWeight;
    count(0, earlier(kKeyStep, voted));
    for (int64_t key = voted, end; key < args.keys; key = end) {
        end = earlier((key / kKeyStep + 1) * kKeyStep, args.keys);
        count(key, end);
    }
    alignas(64) float offset[kRows];
    for (int64_t r = 0; r < kRows; ++r)
        offset[r] = r < args.lanes ? args.m[r] + __builtin_logf(args.l[r]) : __builtin_inff();
    for (int64_t key = 0; key < voted; key += kKeyStep) {
        const int64_t end = earlier(key + kKeyStep, voted);
        score(key, end);
        add(key, end - key, offset);
    }
}

// sums[key] += the sum over lanes of `exponential` of score - offset, which is at most 0; keys are rounded up
// to four. scores [keys][kStride].
template <int kRows, int kStride, class Exponential>
__attribute__((always_inline)) inline void add_votes(int64_t keys, const float* scores, const float* offset,
                                                     float* sums, Exponential exponential) {
    constexpr int kVectors = kRows / kWidth;
    const auto vote = [&](const float* p, int j) {
        const Simd::Vec above = Simd::sub(Simd::load(p + j * kWidth), Simd::load(offset + j * kWidth));
        return exponential(Simd::min(above, Simd::zero()));
    };
    for (int64_t key = 0; key < keys; key += 4, sums += 4) {
        Simd::Vec four[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, scores += kStride) {
            four[i] = vote(scores, 0);
#pragma GCC unroll 12
            for (int j = 1; j < kVectors; ++j) four[i] = Simd::add(four[i], vote(scores, j));
        }
        Simd::sum_four(four, true, sums);
    }
}

// Of packed keys.
template <class Numbers, int kRows>
inline void vote(const BlockArgs& args) {
    set_tiles_of_keys<Numbers>(args);
    vote_by_sample<kRows>(
        args,
        [&](int64_t begin, int64_t end) {
            const int64_t panel = begin / kPanel * kPanel;
            if (panel == begin) {
                score<Numbers, kRows>(args, begin, end, args.p);
                return end - begin;
            }
            float first[kLanes];
            for (int64_t r = 0; r < kLanes; ++r) first[r] = static_cast<float>(begin);
            BlockArgs some = args;
            some.first = first;
            some.hiding = begin;
            score<Numbers, kRows>(some, panel, end, args.p);
            return end - panel;
        },
        [&](int64_t rows) { exponentiate<kRows>(rows, args.m, args.p, args.l); },
        [&](int64_t begin, int64_t keys, const float* offset) {
            add_votes<kRows, static_cast<int>(kLanes)>(keys, args.p, offset, args.votes + begin,
                                                       exp_nonpositive);
        });
}

}  // namespace
