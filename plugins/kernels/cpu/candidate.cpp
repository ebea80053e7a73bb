// CachedCandidateScore: the joint softmax of a chunk's last rows over its memory set and itself. The keys are
// the memory set's rows followed by the chunk's. The scores are column sums, and values are not read.
#include "sweep.h"

namespace h2o {
namespace {

struct Candidate {
    const calls::CachedCandidateScore& call;
    // Scratch [Hs, M, d] for the memory set in the format of the chunk's keys, if the cache has another; or
    // null
    char* gathered = nullptr;

    int64_t heads() const { return call.shape.score_heads; }
    int64_t keys() const { return call.M + call.n; }
    int64_t blocks() const { return (call.w * (call.shape.query_heads / heads()) + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }

    // All keys of one sweep have the same format.
    void gather(const h2o_cpu* context, int64_t head) const {
        const KeyRows rows = cache_rows(call.shape, kv_head(call.shape, heads(), head), keys_alone(*call.kv),
                                        nullptr, call.kv->rows);
        for (int64_t slot = head * call.M; slot < (head + 1) * call.M; ++slot) {
            convert(*context->kernels, rows.key(call.memory[slot]), call.kv->dtype,
                    rows.key_scale(call.memory[slot]), call.shape.head_size, gathered + slot * row_bytes(),
                    call.shape.dtype);
        }
    }

    int64_t row_bytes() const { return call.shape.head_size * element_size(call.shape.dtype); }

    KeyRows memory_rows(int64_t head) const {
        if (gathered == nullptr) {
            return cache_rows(call.shape, kv_head(call.shape, heads(), head), keys_alone(*call.kv),
                              call.memory + head * call.M, call.M);
        }
        h2o_shape alone = call.shape;
        alone.kv_heads = 1;
        const char* const first = gathered + head * call.M * row_bytes();
        return cache_rows(alone, 0, plain_rows(call.shape, first, nullptr, call.M), nullptr, call.M);
    }

    void part(const h2o_cpu* context, SweepScratch& scratch, float* partial, int64_t head,
              int64_t index) const {
        const int64_t kv_head = h2o::kv_head(call.shape, heads(), head);
        const KeyRows chunk =
            cache_rows(call.shape, kv_head, plain_rows(call.shape, call.k, nullptr, call.n), nullptr, call.n);
        Sweep rows = head_sweep(context, call.shape, heads(), head, call.q_window, call.w);
        rows.keys = chunk;
        if (call.M > 0) {
            rows.keys = memory_rows(head);
            rows.keys.then = &chunk;
        }
        rows.total_keys = keys();
        rows.offset = keys() - call.w;
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

    void run(h2o_cpu* context) {
        prepare(context, {call.shape.head_size, 0, keys(), 1, false, true});
        const bool alike = call.kv->dtype == call.shape.dtype || call.M == 0;
        const int64_t sums = heads() * parts() * keys(), rows = alike ? 0 : heads() * call.M;
        float* const partial = carve_shared(context, [&](Carver& shared) {
            float* const here = shared.take<float>(sums);
            gathered = shared.take<char>(rows * row_bytes());
            return here;
        });
        if (alike) gathered = nullptr;
        context->pool.each(alike ? 0 : heads(), [&](int64_t head, int) { gather(context, head); });
        each_part(context, heads(), parts(), [&](int64_t head, int64_t index, int thread) {
            part(context, *context->scratch[static_cast<size_t>(thread)], partial, head, index);
        });
        for (int64_t head = 0; head < heads(); ++head) {
            const float* const of_head = partial + head * parts() * keys();
            add_parts(of_head, parts(), keys(), call.M, call.score_mem + head * call.M, 1);
            add_parts(of_head + call.M, parts(), keys(), call.n, call.score_chunk + head, heads());
        }
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

h2o_status run(const calls::CachedCandidateScore& call) {
    h2o_cpu* const context = cpu_of(call);
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (context == nullptr || call.w <= 0 || call.n < call.w || call.M < 0) return H2O_BAD_ARGUMENT;
    if (!call.q_window || !call.k || !call.score_chunk) return H2O_BAD_ARGUMENT;
    if (call.M > 0 && (!call.memory || !call.score_mem)) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = h2o_kv_check_keys(call.kv, call.M > 0); status != H2O_OK) return status;
    if (!rows_in_range(*call.kv, call.memory, int64_t{call.Hs} * call.M)) return H2O_BAD_ARGUMENT;
    Candidate op{call};
    return guarded(context, [&] { op.run(context); });
}

}  // namespace h2o::cpu
