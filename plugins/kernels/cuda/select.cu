// MemorySelect: for each score head, the last `local` positions of a chunk and the best of everything else.
// The same launch does all other score and memory-set work at the end of a chunk.
//
// The memory set is sorted and precedes the chunk, so all candidates are in order of position.
//
// Floor: the scores, read once; at about 1,300 candidates, the latency of a few block-wide steps dominates.
// One block for each score head; scores stay in shared memory if they fit.

#include "checks.h"
#include "h2o/cuda.h"
#include "row_range.cuh"
#include "select.cuh"

namespace h2o::cuda {
namespace {

struct Candidates {
    const float* score;     // of this head, `heads` apart
    const int32_t* memory;  // of this head
    int heads;              // Hs
    int remembered;         // Mp: cache rows of the memory set
    int start;              // first cache row of the chunk
    int last_row;           // of the cache

    __device__ __forceinline__ int position(int i) const {
        return i < remembered ? row_within(memory[i], last_row) : start + (i - remembered);
    }
    __device__ __forceinline__ uint32_t bits(int i) const {
        return rank_bits(score[static_cast<int64_t>(position(i)) * heads]);
    }
};

// Outputs, [Hs, M] each: `memory` and, unless null, `last` and `set`. The scores go to `set_scores`, unless
// it is null.
struct NextMemory {
    int32_t* memory;    // cache rows, rising
    int32_t* last;      // a copy
    int32_t* set;       // another
    float* set_scores;  // of these rows
};

struct Step {
    int heads;              // Hs
    int capacity;           // cap: cache rows
    int remembered;         // Mp: cache rows of the memory set
    int local;              // most recent cache rows, which every memory set has
    int heavy;              // other cache rows of the next memory set: M - local
    const int64_t* range;   // [2] start and stop, on the device; or null:
    int start, stop;        // the chunk's range of cache rows
    const int32_t* memory;  // [Hs, Mp] cache rows below start
    const float* values;  // [Hs, Mp] what the scores of the memory set are set to or grow by; null: they stay
    bool replace;         // they are set
    float* score;         // [cap, Hs] sums of probabilities
    NextMemory next;
};

__global__ void __launch_bounds__(kSelectThreads) step_memory(const Step step) {
    const int head = blockIdx.x;
    const int start = bounded(step.range ? step.range[0] : step.start, 0, step.capacity);
    const int stop = bounded(step.range ? step.range[1] : step.stop, start, step.capacity);
    const int total = step.local + step.heavy;
    const int recent = min(step.local, stop - start);
    const int64_t first = static_cast<int64_t>(head) * step.remembered;
    float* const score = step.score + head;
    const Candidates candidates{score, step.memory + first, step.heads, step.remembered,
                                start, step.capacity - 1};

    for (int i = threadIdx.x; step.values && i < step.remembered; i += kSelectThreads) {
        float& kept = score[static_cast<int64_t>(candidates.position(i)) * step.heads];
        const float value = step.values[first + i];
        kept = step.replace ? value : kept + value;
    }
    __syncthreads();  // every score is there

    const NextMemory& next = step.next;
    const auto put = [&](int place, int position) {
        const int64_t at = static_cast<int64_t>(head) * total + place;
        next.memory[at] = position;
        if (next.last) next.last[at] = position;
        if (next.set) next.set[at] = position;
        if (next.set_scores) next.set_scores[at] = score[static_cast<int64_t>(position) * step.heads];
    };
    const int count = step.remembered + (stop - start) - recent;
    const int wanted_total = min(total - recent, count);
    take_best_by<kSelectThreads>(candidates, count, wanted_total,
                                 *reinterpret_cast<SelectShared*>(dynamic_shared()), put);
    for (int i = threadIdx.x; i < recent; i += kSelectThreads) put(wanted_total + i, stop - recent + i);
}

Step step_of(int heads, int capacity, int remembered, int local, int heavy) {
    Step step = {};
    step.heads = heads;
    step.capacity = capacity;
    step.remembered = remembered;
    step.local = local;
    step.heavy = heavy;
    return step;
}

h2o_status run(const Step& step, cudaStream_t stream) {
    if (step.heads <= 0 || step.capacity <= 0 || step.remembered < 0 || step.local < 0 || step.heavy < 0 ||
        step.local + step.heavy <= 0)
        return H2O_BAD_ARGUMENT;
    if (!step.score || !step.next.memory || (step.remembered > 0 && !step.memory) ||
        step.memory == step.next.memory)
        return H2O_BAD_ARGUMENT;
    return launch(step_memory, dim3(static_cast<unsigned>(step.heads), 1, 1), kSelectThreads,
                  sizeof(SelectShared), stream, step);
}

}  // namespace
}  // namespace h2o::cuda

namespace h2o::cuda {

h2o_status run(const calls::MemorySelect& call) {
    const cudaStream_t stream = stream_of(call);
    if (!call.chunk_range) return H2O_BAD_ARGUMENT;
    Step step = step_of(call.Hs, call.cap, call.Mp, call.local, call.M - call.local);
    step.range = call.chunk_range;
    step.memory = call.memory;
    step.score = const_cast<float*>(call.score);  // without values nothing is written there
    step.next.memory = call.memory_next;
    return run(step, stream);
}

h2o_status run(const calls::MemoryStep& call) {
    const cudaStream_t stream = stream_of(call);
    const NextMemory next{call.memory_next, call.last, call.boundary, call.scores};
    if (call.start < 0 || call.stop < call.start || call.stop > call.cap) return H2O_BAD_ARGUMENT;
    Step step = step_of(call.Hs, call.cap, call.Mp, call.local, call.M - call.local);
    step.start = call.start;
    step.stop = call.stop;
    step.memory = call.memory;
    step.values = call.values;
    step.replace = call.add == 0;
    step.score = call.score;
    step.next = next;
    return run(step, stream);
}

}  // namespace h2o::cuda
