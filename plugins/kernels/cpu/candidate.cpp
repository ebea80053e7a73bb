// CandidateScore: the joint softmax of a chunk's last rows over its memory and itself. The keys are the
// memory's rows followed by the chunk's, the scores are column sums, and no value is read.
#include "sweep.h"

namespace h2o {
namespace {

struct Candidate {
    const h2o_shape& shape;
    int64_t w, n, slots;
    const void *q, *k;
    const h2o_kv& kv;
    char* gathered;  // [Hs, slots, d] as the chunk's keys are stored, for memory that is not; or null
    const int32_t* memory;
    float *score_memory, *score_chunk;

    int64_t heads() const { return shape.score_heads; }
    int64_t keys() const { return slots + n; }
    int64_t blocks() const { return (w * (shape.query_heads / heads()) + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }

    // One sweep's keys are all stored alike.
    void gather(const h2o_cpu* context, int64_t head) const {
        const KeyRows rows =
            cache_rows(shape, kv_head(shape, heads(), head), keys_alone(kv), nullptr, kv.rows);
        for (int64_t slot = head * slots; slot < (head + 1) * slots; ++slot) {
            convert(*context->kernels, rows.key(memory[slot]), kv.dtype, rows.key_scale(memory[slot]),
                    shape.head_size, gathered + slot * row_bytes(), shape.dtype);
        }
    }

    int64_t row_bytes() const { return shape.head_size * element_size(shape.dtype); }

    KeyRows memory_rows(int64_t head) const {
        if (gathered == nullptr) {
            return cache_rows(shape, kv_head(shape, heads(), head), keys_alone(kv), memory + head * slots,
                              slots);
        }
        h2o_shape alone = shape;
        alone.kv_heads = 1;
        const char* const first = gathered + head * slots * row_bytes();
        return cache_rows(alone, 0, plain_rows(shape, first, nullptr, slots), nullptr, slots);
    }

    void part(const h2o_cpu* context, SweepScratch& scratch, float* partial, int64_t head,
              int64_t index) const {
        const int64_t kv_head = h2o::kv_head(shape, heads(), head);
        const KeyRows chunk = cache_rows(shape, kv_head, plain_rows(shape, k, nullptr, n), nullptr, n);
        Sweep rows = head_sweep(context, shape, heads(), head, q, w);
        rows.keys = chunk;
        if (slots > 0) {
            rows.keys = memory_rows(head);
            rows.keys.then = &chunk;
        }
        rows.total_keys = keys();
        rows.offset = keys() - w;
        rows.key_block = keys();
        rows.unit = head;
        const int64_t begin = even_part(blocks(), parts(), index),
                      end = even_part(blocks(), parts(), index + 1);
        std::memset(scratch.colsum, 0, static_cast<size_t>(keys() * kColsumLanes) * sizeof(float));
        rows.run(scratch, begin, end, 0, keys(), true, [](int64_t, int64_t) {});
        float* const sums = partial + (head * parts() + index) * keys();
        std::memset(sums, 0, static_cast<size_t>(keys()) * sizeof(float));
        context->kernels->sum_lanes(scratch.colsum, keys(), sums);
    }

    void add_parts(const float* partial, int64_t head) const {
        for (int64_t key = 0; key < keys(); ++key) {
            float sum = 0.0f;
            for (int64_t i = 0; i < parts(); ++i) sum += partial[(head * parts() + i) * keys() + key];
            if (key < slots) {
                score_memory[head * slots + key] = sum;
            } else {
                score_chunk[(key - slots) * heads() + head] = sum;
            }
        }
    }
};

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_candidate_score(h2o_cpu* context, const h2o_shape* shape, int64_t w, int64_t n,
                                   int64_t slots, const void* q_window, const void* k, const h2o_kv* kv,
                                   const int32_t* memory, float* score_memory, float* score_chunk) {
    if (const h2o_status status = h2o::check_heads(shape); status != H2O_OK) return status;
    if (context == nullptr || w <= 0 || n < w || slots < 0) return H2O_BAD_ARGUMENT;
    if (!q_window || !k || !score_chunk) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(kv, slots > 0); status != H2O_OK) return status;
    if (slots > 0 && (!memory || !score_memory)) return H2O_BAD_ARGUMENT;
    if (!h2o::rows_in_range(*kv, memory, shape->score_heads * slots)) return H2O_BAD_ARGUMENT;
    h2o::Candidate op{*shape, w, n, slots, q_window, k, *kv, nullptr, memory, score_memory, score_chunk};
    return h2o::guarded(context, [&] {
        std::vector<h2o::SweepScratch*>& scratch = context->scratch;
        h2o::prepare(context, {shape->head_size, 0, op.keys(), 1, false, true}, scratch.data());
        const bool alike = kv->dtype == shape->dtype || slots == 0;
        const int64_t rows = alike ? 0 : op.heads() * slots, sums = op.heads() * op.parts() * op.keys();
        const auto carve = [&](char* base, size_t* bytes) {
            h2o::Carver carver(base);
            float* const partial = carver.take<float>(sums);
            op.gathered = alike ? nullptr : carver.take<char>(rows * op.row_bytes());
            if (bytes != nullptr) *bytes = carver.used();
            return partial;
        };
        size_t bytes = 0;
        carve(nullptr, &bytes);
        float* const partial = carve(context->shared.at_least(bytes), nullptr);
        if (!alike) context->pool.each(op.heads(), [&](int64_t head, int) { op.gather(context, head); });
        h2o::each_part(context, op.heads(), op.parts(), [&](int64_t head, int64_t index, int thread) {
            op.part(context, *scratch[static_cast<size_t>(thread)], partial, head, index);
        });
        for (int64_t head = 0; head < op.heads(); ++head) op.add_parts(partial, head);
    });
}
