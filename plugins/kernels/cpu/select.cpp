// MemorySelect: a chunk's next memory set, by partial selection.
#include <algorithm>

#include "context.h"
#include "rank.h"

namespace h2o {
namespace {

struct Select {
    int64_t heads;
    const float* score;
    int64_t previous;
    const int32_t* memory;
    int64_t start, stop, local, slots, sink;

    int64_t first_local() const { return std::max(start, stop - local); }
    int64_t candidates() const { return previous + first_local() - start; }

    void head(int64_t head, uint64_t* ranks, int32_t* out) const {
        int64_t count = 0;
        auto offer = [&](int64_t position) {
            ranks[count++] = rank(score[position * heads + head], position, position < sink);
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

h2o_status h2o_cpu_memory_select(h2o_cpu* context, int64_t score_heads, int64_t cap, const float* score,
                                 int64_t previous_slots, const int32_t* memory, int64_t start, int64_t stop,
                                 int64_t local, int64_t slots, int64_t sink, int32_t* out) {
    if (context == nullptr || !score || !out || (previous_slots > 0 && !memory)) return H2O_BAD_ARGUMENT;
    if (score_heads <= 0 || previous_slots < 0 || start < 0 || stop < start || stop > cap)
        return H2O_BAD_ARGUMENT;
    if (local < 0 || slots < local || sink < 0 || cap > INT32_MAX) return H2O_BAD_ARGUMENT;
    if (previous_slots + stop - start < slots) return H2O_BAD_ARGUMENT;
    if (previous_slots > 0 && !h2o::in_range(memory, score_heads * previous_slots, start))
        return H2O_BAD_ARGUMENT;
    const h2o::Select op{score_heads, score, previous_slots, memory, start, stop, local, slots, sink};
    return h2o::guarded(context, [&] {
        const size_t bytes = static_cast<size_t>(h2o::rank_room(op.candidates())) * sizeof(uint64_t);
        for (h2o::Arena& arena : context->own) arena.at_least(bytes);
        context->pool.each(score_heads, [&](int64_t head, int thread) {
            char* const scratch = context->own[static_cast<size_t>(thread)].at_least(bytes);
            op.head(head, reinterpret_cast<uint64_t*>(scratch), out + head * slots);
        });
    });
}
