// The denominator of a vote is estimated: of the places behind the first kSampleStep, kSampled in each
// kSampleStep count, each as so many as it stands for. A vote for another place may then exceed 1, and is
// cut.
#pragma once

#include <cuda_runtime.h>

namespace h2o::cuda {

constexpr int kSampleStep = 128;
constexpr int kSampleFirst = 56;  // of a step, the first of the sample
constexpr int kSampled = 16;
constexpr float kSampleWeight = static_cast<float>(kSampleStep) / kSampled;

// What a vote's denominator is summed over: the sample, then the first places, then own rows if there are
// any.
struct VoteSample {
    int count;    // all places
    int sampled;  // of these, in the sample
    int begin;    // index of the first place: `sampled`, up to a multiple of `unit`
    int end;      // and the one behind the first places

    __device__ __forceinline__ VoteSample(int count, int unit) : count(count) {
        const int rest = max(count - kSampleStep, 0);
        sampled = rest / kSampleStep * kSampled + min(max(rest % kSampleStep - kSampleFirst, 0), kSampled);
        begin = (sampled + unit - 1) / unit * unit;
        end = begin + min(count, kSampleStep);
    }
    // Of index i. From `count` on these are own rows; between `sampled` and `begin` the last place repeats.
    __device__ __forceinline__ int place(int i) const {
        if (i >= begin) return i < end ? i - begin : i - end + count;
        const unsigned j = static_cast<unsigned>(min(i, sampled - 1));
        return static_cast<int>((1 + j / kSampled) * kSampleStep + kSampleFirst + j % kSampled);
    }
};

}  // namespace h2o::cuda
