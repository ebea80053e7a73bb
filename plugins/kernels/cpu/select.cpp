// MemorySelect: a chunk's next memory set, by partial selection.
#include <algorithm>
#include <numeric>

#include "context.h"
#include "rank.h"

namespace h2o {
namespace {

struct Select {
    const calls::MemorySelect& call;

    int64_t start() const { return call.chunk_range[0]; }
    int64_t stop() const { return call.chunk_range[1]; }
    int64_t first_local() const { return std::max(start(), stop() - call.local); }
    int64_t candidates() const { return int64_t{call.Mp} + first_local() - start(); }

    struct Own {
        int32_t* rows;     // [candidates] rising
        uint32_t* orders;  // [take_room(candidates)]
    };
    Own carve(Carver& carver) const {
        return {carver.take<int32_t>(candidates()), carver.take<uint32_t>(take_room(candidates()))};
    }

    void head(int64_t head, const Own& own, int32_t* out) const {
        int32_t *const rows = own.rows, *const chunk = rows + call.Mp;
        std::copy_n(call.memory + head * call.Mp, call.Mp, rows);
        if (!std::is_sorted(rows, chunk)) std::sort(rows, chunk);
        std::iota(chunk, rows + candidates(), static_cast<int32_t>(start()));
        for (int64_t i = 0; i < candidates(); ++i)
            own.orders[i] = order(call.score[int64_t{rows[i]} * call.Hs + head]);
        const int64_t best = call.M - (stop() - first_local());
        take_first_best(own.orders, candidates(), best, out);
        for (int64_t i = 0; i < best; ++i) out[i] = rows[out[i]];
        std::iota(out + best, out + call.M, static_cast<int32_t>(first_local()));
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
    const Select op{call};
    return guarded(context, [&] {
        const auto own = carve_own(context, [&](Carver& carver) { return op.carve(carver); });
        context->pool.each(call.Hs, [&](int64_t head, int thread) {
            op.head(head, own(thread), call.memory_next + head * call.M);
        });
    });
}

}  // namespace h2o::cpu
