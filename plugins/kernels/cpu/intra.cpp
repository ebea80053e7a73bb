// ChunkedIntraAttention. A unit is one head of one chunk: a score head if column sums are wanted, else a
// key/value head. Its row blocks, from the chunk's start to its end, are cut into parts of equal work. Every
// part has its own column sums. They are added in order at the end, so the result does not depend on the
// threads.
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kParts = 4;

struct Intra {
    const h2o_shape& shape;
    int64_t n;           // rows of all chunks
    int64_t chunk_size;  // S: rows of a chunk; the last may have fewer
    const void* q;       // [n, Hq, d] of shape.dtype
    const void* k;       // [n, Hkv, d] of shape.dtype
    const void* v;       // [n, Hkv, dv] of shape.dtype
    void* o;             // [n, Hq, dv] of shape.dtype, out
    float* m;            // [n, Hq] out: maxima of the scores
    float* l;            // [n, Hq] out: sums of exp(score - m)
    float* colsum;       // [n, Hs] out: sums of probabilities by key; or null

    // A score head that spans several key/value heads adds their sums.
    int64_t heads() const { return colsum != nullptr ? own_heads(shape) : shape.kv_heads; }
    int64_t units() const { return (n + chunk_size - 1) / chunk_size * heads(); }
    int64_t start(int64_t unit) const { return unit / heads() * chunk_size; }
    int64_t length(int64_t unit) const { return std::min(chunk_size, n - start(unit)); }
    // Without column sums, a row's scores are never needed all at once.
    int64_t key_block() const { return colsum != nullptr ? chunk_size : std::min(chunk_size, kFirstKeys); }

    Sweep sweep(const h2o_cpu* context, int64_t unit) const {
        const int64_t size = element_size(shape.dtype), head = unit % heads(), first = start(unit);
        const char* const queries = static_cast<const char*>(q) + first * query_bytes(shape);
        Sweep unit_sweep = head_sweep(context, shape, heads(), head, queries, length(unit));
        unit_sweep.out = static_cast<char*>(o) + first * output_bytes(shape);
        const int64_t before = first * shape.kv_heads * size;  // of numbers of a size of 1
        const char* const keys = static_cast<const char*>(k) + before * shape.head_size;
        const char* const values = v == k ? keys : static_cast<const char*>(v) + before * value_size(shape);
        const h2o_kv rows = plain_rows(shape, keys, values, length(unit));
        unit_sweep.keys = cache_rows(shape, kv_head(shape, heads(), head), rows, nullptr, length(unit));
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
        if (colsum != nullptr) {
            std::memset(scratch.colsum, 0, static_cast<size_t>(keys * kColsumLanes) * sizeof(float));
            std::memset(sums, 0, static_cast<size_t>(keys) * sizeof(float));
        }
        if (begin == end) return;
        const int64_t first = start(unit) * shape.query_heads;
        rows.run(scratch, begin, end, 0, keys, colsum != nullptr, [&](int64_t block, int64_t slot) {
            rows.store_state(scratch, block, slot, m + first, l + first);
        });
        if (colsum != nullptr) context->kernels->sum_lanes(scratch.colsum, keys, sums);
    }

    // Sums of `spanned` units are added for one score head.
    void add_parts(const float* partial, int64_t first_unit, int64_t spanned) const {
        const float* const sums = partial + first_unit * kParts * chunk_size;
        const int64_t sets = shape.score_heads;
        float* const out = colsum + start(first_unit) * sets + first_unit % heads() / spanned;
        for (int64_t key = 0; key < length(first_unit); ++key) {
            float sum = 0.0f;
            for (int64_t i = 0; i < spanned * kParts; ++i) sum += sums[i * chunk_size + key];
            out[key * sets] = sum;
        }
    }

    SweepSize size() const {
        const int64_t rows = std::min(n, chunk_size) * (shape.query_heads / heads());
        const bool single = colsum != nullptr || std::min(n, chunk_size) <= kFirstKeys;
        return {
            shape.head_size,  value_size(shape), key_block(), single ? 1 : (rows + kLanes - 1) / kLanes, true,
            colsum != nullptr};
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
    const Intra op{
        call.shape, call.n,     std::min(call.n, call.chunk_size), call.q, call.k, call.v, call.o, call.m,
        call.l,     call.colsum};
    return guarded(context, [&] {
        std::vector<SweepScratch*>& scratch = context->scratch;
        prepare(context, op.size(), scratch.data());
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
