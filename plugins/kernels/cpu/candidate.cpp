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
    const int32_t* memory;
    float *score_memory, *score_chunk;

    int64_t heads() const { return shape.score_heads; }
    int64_t keys() const { return slots + n; }
    int64_t blocks() const { return (w * (shape.query_heads / heads()) + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }

    void part(const h2o_cpu* context, SweepScratch& scratch, float* partial, int64_t head,
              int64_t index) const {
        const int64_t kv_head = h2o::kv_head(shape, heads(), head);
        const KeyRows chunk = cache_rows(shape, kv_head, k, nullptr, nullptr, n);
        Sweep rows = head_sweep(context, shape, heads(), head, q, w);
        rows.keys = chunk;
        if (slots > 0) {
            rows.keys = cache_rows(shape, kv_head, kv.k, nullptr, memory + head * slots, slots);
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
    if (const h2o_status status = h2o::check_shape(shape); status != H2O_OK) return status;
    if (context == nullptr || w <= 0 || n < w || slots < 0) return H2O_BAD_ARGUMENT;
    if (!q_window || !k || !score_chunk) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(kv, slots > 0); status != H2O_OK) return status;
    if (slots > 0 && (!memory || !score_memory)) return H2O_BAD_ARGUMENT;
    if (!h2o::in_range(memory, shape->score_heads * slots, kv->rows)) return H2O_BAD_ARGUMENT;
    const h2o::Candidate op{*shape, w, n, slots, q_window, k, *kv, memory, score_memory, score_chunk};
    return h2o::guarded(context, [&] {
        std::vector<h2o::SweepScratch*>& scratch = context->scratch;
        h2o::prepare(context, {shape->head_size, op.keys(), 1, false, true}, scratch.data());
        float* const partial = context->shared_floats(op.heads() * op.parts() * op.keys());
        h2o::each_part(context, op.heads(), op.parts(), [&](int64_t head, int64_t index, int thread) {
            op.part(context, *scratch[static_cast<size_t>(thread)], partial, head, index);
        });
        for (int64_t head = 0; head < op.heads(); ++head) op.add_parts(partial, head);
    });
}
