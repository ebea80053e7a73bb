// CachedCandidateScore: the joint softmax of a chunk's last rows over its memory set and itself. The keys are
// the memory set's rows followed by the chunk's. The scores are column sums, and values are not read.
#include "sweep.h"

namespace h2o {
namespace {

struct Candidate {
    const h2o_shape& shape;
    int64_t w;              // query rows, the last of the chunk
    int64_t n;              // keys of the chunk
    int64_t slots;          // M: keys of a memory set
    const void* q;          // [w, Hq, d] of shape.dtype
    const void* k;          // [n, Hkv, d] of shape.dtype
    const h2o_kv& kv;       // keys of the cache; values are not read
    const int32_t* memory;  // [Hs, M] cache rows
    float* score_memory;    // [Hs, M] out: sums of probabilities
    float* score_chunk;     // [n, Hs] out: sums of probabilities
    // Scratch [Hs, M, d] for the memory set in the format of the chunk's keys, if the cache has another; or
    // null
    char* gathered = nullptr;

    int64_t heads() const { return shape.score_heads; }
    int64_t keys() const { return slots + n; }
    int64_t blocks() const { return (w * (shape.query_heads / heads()) + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }

    // All keys of one sweep have the same format.
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

    void run(h2o_cpu* context) {
        prepare(context, {shape.head_size, 0, keys(), 1, false, true}, context->scratch.data());
        const bool alike = kv.dtype == shape.dtype || slots == 0;
        const int64_t sums = heads() * parts() * keys(), rows = alike ? 0 : heads() * slots;
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
        for (int64_t head = 0; head < heads(); ++head) add_parts(partial, head);
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
    Candidate op{call.shape, call.w,   call.n,      call.M,         call.q_window,
                 call.k,     *call.kv, call.memory, call.score_mem, call.score_chunk};
    return guarded(context, [&] { op.run(context); });
}

}  // namespace h2o::cpu
