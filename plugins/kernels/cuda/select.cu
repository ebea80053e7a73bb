// MemorySelect: for each score head, the last `local` positions of a chunk and the best of everything else.
//
// The memory is sorted and lies before the chunk, so that all candidates stand in order of position.
//
// Floor: the scores, read once; at these sizes (about 1,300 candidates) it is the latency of a few block-wide
// steps that counts. One block a score head; scores are kept in shared memory when they fit.

#include "h2o/cuda.h"
#include "row_range.cuh"
#include "select.cuh"

namespace h2o::cuda {
namespace {

struct Candidates {
    const float* score;     // of this head, `heads` apart
    const int32_t* memory;  // of this head
    int heads, remembered, start, sink, last_row;

    __device__ __forceinline__ int position(int i) const {
        return i < remembered ? row_within(memory[i], last_row) : start + (i - remembered);
    }
    __device__ __forceinline__ uint32_t bits(int i) const {
        const int at = position(i);
        return rank_bits(score[static_cast<int64_t>(at) * heads], at < sink);
    }
};

__global__ void __launch_bounds__(kSelectThreads)
    select_memory(const float* score, const int32_t* memory, const int64_t* range, int heads, int capacity,
                  int remembered, int local, int heavy, int sink, int32_t* out) {
    const int head = blockIdx.x;
    const int start = bounded(range[0], 0, capacity), stop = bounded(range[1], start, capacity);
    const int total = local + heavy;
    const int recent = min(local, stop - start);
    const int32_t* own = memory + static_cast<int64_t>(head) * remembered;
    const Candidates candidates{score + head, own, heads, remembered, start, sink, capacity - 1};
    const int count = remembered + (stop - start) - recent;
    const int wanted_total = min(total - recent, count);
    out += static_cast<int64_t>(head) * total;
    take_best(candidates, count, wanted_total, *reinterpret_cast<SelectShared*>(dynamic_shared()), out);
    for (int i = threadIdx.x; i < recent; i += kSelectThreads) out[wanted_total + i] = stop - recent + i;
}

}  // namespace
}  // namespace h2o::cuda

extern "C" h2o_status h2o_cuda_memory_select(h2o_cuda_stream stream, int32_t score_heads, int32_t capacity,
                                             int32_t previous_slots, int32_t local, int32_t heavy,
                                             int32_t sink, const float* score, const int32_t* memory,
                                             const int64_t* chunk_range, int32_t* memory_next) {
    using namespace h2o::cuda;
    if (score_heads <= 0 || capacity <= 0 || previous_slots < 0 || local < 0 || heavy < 0 ||
        local + heavy <= 0 || sink < 0)
        return H2O_BAD_ARGUMENT;
    if (!score || !chunk_range || !memory_next || (previous_slots > 0 && !memory) || memory == memory_next)
        return H2O_BAD_ARGUMENT;
    return launch(select_memory, dim3(static_cast<unsigned>(score_heads), 1, 1), kSelectThreads,
                  sizeof(SelectShared), stream, score, memory, chunk_range, score_heads, capacity,
                  previous_slots, local, heavy, sink, memory_next);
}
