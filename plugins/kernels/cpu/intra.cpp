// ChunkedIntraAttention. A unit is one head of one chunk: a score head if column sums are wanted, else a
// key/value head. Its row blocks, from the chunk's start to its end, are cut into parts of equal work. Every
// part has its own column sums. They are added in order at the end, so the result does not depend on the
// threads.
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kParts = 4;

struct Intra {
    const calls::ChunkedIntraAttention& call;
    int64_t chunk_size = std::min(call.n, call.chunk_size);  // rows of a chunk; the last may have fewer

    // A score head that spans several key/value heads adds their sums.
    int64_t heads() const { return call.colsum != nullptr ? own_heads(call.shape) : call.shape.kv_heads; }
    int64_t units() const { return (call.n + chunk_size - 1) / chunk_size * heads(); }
    int64_t start(int64_t unit) const { return unit / heads() * chunk_size; }
    int64_t length(int64_t unit) const { return std::min(chunk_size, call.n - start(unit)); }
    // Without column sums, a row's scores are never needed all at once.
    int64_t key_block() const {
        return call.colsum != nullptr ? chunk_size : std::min(chunk_size, kFirstKeys);
    }

    Sweep sweep(const h2o_cpu* context, int64_t unit) const {
        const int64_t size = element_size(call.shape.dtype), head = unit % heads(), first = start(unit);
        const char* const queries = static_cast<const char*>(call.q) + first * query_bytes(call.shape);
        Sweep unit_sweep = head_sweep(context, call.shape, heads(), head, queries, length(unit));
        unit_sweep.out = static_cast<char*>(call.o) + first * output_bytes(call.shape);
        const int64_t before = first * call.shape.kv_heads * size;  // of numbers of a size of 1
        const char* const keys = static_cast<const char*>(call.k) + before * call.shape.head_size;
        const char* const values =
            call.v == call.k ? keys : static_cast<const char*>(call.v) + before * value_size(call.shape);
        const h2o_kv rows = plain_rows(call.shape, keys, values, length(unit));
        unit_sweep.keys =
            cache_rows(call.shape, kv_head(call.shape, heads(), head), rows, nullptr, length(unit));
        unit_sweep.total_keys = length(unit);
        unit_sweep.offset = 0;
        unit_sweep.key_block = key_block();
        unit_sweep.unit = unit;
        return unit_sweep;
    }

    void part(const h2o_cpu* context, SweepScratch& scratch, float* partial, int64_t unit,
              int64_t index) const {
        const Sweep rows = sweep(context, unit);
        const int64_t begin = triangle_part(rows.blocks(), kParts, index);
        const int64_t end = triangle_part(rows.blocks(), kParts, index + 1);
        const int64_t keys = length(unit);
        float* const sums = partial + (unit * kParts + index) * chunk_size;
        if (call.colsum != nullptr) {
            std::memset(scratch.colsum, 0, static_cast<size_t>(keys * kColsumLanes) * sizeof(float));
            std::memset(sums, 0, static_cast<size_t>(keys) * sizeof(float));
        }
        if (begin == end) return;
        const int64_t first = start(unit) * call.shape.query_heads;
        rows.run(scratch, begin, end, 0, keys, call.colsum != nullptr, [&](int64_t block, int64_t slot) {
            rows.store_state(scratch, block, slot, call.m + first, call.l + first);
        });
        if (call.colsum != nullptr) context->kernels->sum_lanes(scratch.colsum, keys, sums);
    }

    // Sums of `spanned` units are added for one score head.
    void add_parts(const float* partial, int64_t first_unit, int64_t spanned) const {
        const int64_t sets = call.shape.score_heads;
        h2o::add_parts(partial + first_unit * kParts * chunk_size, spanned * kParts, chunk_size,
                       length(first_unit),
                       call.colsum + start(first_unit) * sets + first_unit % heads() / spanned, sets);
    }

    SweepSize size() const {
        const int64_t rows = std::min<int64_t>(call.n, chunk_size) * (call.shape.query_heads / heads());
        const bool single = call.colsum != nullptr || std::min<int64_t>(call.n, chunk_size) <= kFirstKeys;
        return {call.shape.head_size,
                value_size(call.shape),
                key_block(),
                single ? 1 : (rows + kLanes - 1) / kLanes,
                true,
                call.colsum != nullptr};
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::ChunkedIntraAttention& call) {
    h2o_cpu* const context = cpu_of(call);
    const h2o_status status = check_shape(&call.shape);
    if (status != H2O_OK) return status;
    if (context == nullptr || call.n < 0 || call.chunk_size <= 0) return H2O_BAD_ARGUMENT;
    if (call.n == 0) return H2O_OK;
    if (!call.q || !call.k || !call.v || !call.o || !call.m || !call.l) return H2O_BAD_ARGUMENT;
    const Intra op{call};
    return guarded(context, [&] {
        std::vector<SweepScratch*>& scratch = context->scratch;
        prepare(context, op.size());
        float* partial = nullptr;
        if (call.colsum != nullptr) partial = context->shared_floats(op.units() * kParts * op.chunk_size);
        each_part(context, op.units(), kParts, [&](int64_t unit, int64_t part, int thread) {
            op.part(context, *scratch[static_cast<size_t>(thread)], partial, unit, part);
        });
        if (call.colsum == nullptr) return;
        const int64_t spanned = op.heads() / call.shape.score_heads;
        context->pool.each(op.units() / spanned,
                           [&](int64_t set, int) { op.add_parts(partial, set * spanned, spanned); });
    });
}

}  // namespace h2o::cpu
