// MemorySelect: a chunk's next memory set, by partial selection.
#include <algorithm>

#include "context.h"
#include "rank.h"

namespace h2o {
namespace {

struct Select {
    int64_t heads;          // Hs
    const float* score;     // [cap, Hs] sums of probabilities
    int64_t previous;       // Mp: cache rows of the previous memory set
    const int32_t* memory;  // [Hs, Mp] cache rows below start
    int64_t start, stop;    // the chunk's range of cache rows
    int64_t local;          // most recent cache rows, which every memory set has
    int64_t slots;          // M: cache rows of the next memory set

    int64_t first_local() const { return std::max(start, stop - local); }
    int64_t candidates() const { return previous + first_local() - start; }

    void head(int64_t head, uint64_t* ranks, int32_t* out) const {
        int64_t count = 0;
        auto offer = [&](int64_t position) {
            ranks[count++] = rank(score[position * heads + head], position);
        };
        for (int64_t i = 0; i < previous; ++i) offer(memory[head * previous + i]);
        for (int64_t position = start; position < first_local(); ++position) offer(position);
        const int64_t best = slots - (stop - first_local());
        take_best(ranks, count, best, out);
        if (!std::is_sorted(out, out + best)) std::sort(out, out + best);  // as the memory was not
        for (int64_t i = best; i < slots; ++i) out[i] = static_cast<int32_t>(first_local() + i - best);
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::MemorySelect& call) {
    h2o_cpu* const context = cpu_of(call);
    const int64_t start = call.chunk_range[0], stop = call.chunk_range[1];
    if (context == nullptr || !call.score || !call.memory_next || (call.Mp > 0 && !call.memory))
        return H2O_BAD_ARGUMENT;
    if (call.Hs <= 0 || call.Mp < 0 || start < 0 || stop < start || stop > call.cap) return H2O_BAD_ARGUMENT;
    if (call.local < 0 || call.M < call.local || call.cap > INT32_MAX) return H2O_BAD_ARGUMENT;
    if (call.Mp + stop - start < call.M) return H2O_BAD_ARGUMENT;
    if (call.Mp > 0 && !in_range(call.memory, int64_t{call.Hs} * call.Mp, start)) return H2O_BAD_ARGUMENT;
    const Select op{call.Hs, call.score, call.Mp, call.memory, start, stop, call.local, call.M};
    return guarded(context, [&] {
        const auto ranks =
            carve_own(context, [&](Carver& own) { return own.take<uint64_t>(rank_room(op.candidates())); });
        context->pool.each(call.Hs, [&](int64_t head, int thread) {
            op.head(head, ranks(thread), call.memory_next + head * call.M);
        });
    });
}

}  // namespace h2o::cpu
