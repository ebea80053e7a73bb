// CandidateScore: the joint softmax of a chunk's last rows over its memory set and itself. The keys are the
// memory set's rows followed by the chunk's. The scores are column sums, and values are not read.
#include "sweep.h"

namespace h2o {
namespace {

struct Candidate {
    const h2o_shape& shape;
    int64_t w;         // query rows, the last of the chunk
    int64_t n;         // keys of the chunk
    int64_t slots;     // M: keys of a memory set
    const void* q;     // [w, Hq, d] of shape.dtype
    const void* k;     // [n, Hkv, d] of shape.dtype
    const h2o_kv& kv;  // keys of the cache; values are not read
    // [Hs, M, d] in the format of the chunk's keys, if the memory set has another; or null
    const char* gathered;
    const int32_t* memory;  // [Hs, M] cache rows; null: the sets are gathered
    float* score_memory;    // [Hs, M] out: sums of probabilities
    float* score_chunk;     // [n, Hs] out: sums of probabilities

    int64_t heads() const { return shape.score_heads; }
    int64_t keys() const { return slots + n; }
    int64_t blocks() const { return (w * (shape.query_heads / heads()) + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }

    // All keys of one sweep have the same format.
    void gather(const h2o_cpu* context, int64_t head, char* to) const {
        const KeyRows rows =
            cache_rows(shape, kv_head(shape, heads(), head), keys_alone(kv), nullptr, kv.rows);
        for (int64_t slot = head * slots; slot < (head + 1) * slots; ++slot) {
            convert(*context->kernels, rows.key(memory[slot]), kv.dtype, rows.key_scale(memory[slot]),
                    shape.head_size, to + slot * row_bytes(), shape.dtype);
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

namespace h2o::cpu {

namespace {

// If `op.gathered` is null, it is scratch for cache rows whose format differs from the chunk's keys.
h2o_status vote(h2o_cpu* context, Candidate& op) {
    return guarded(context, [&] {
        std::vector<SweepScratch*>& scratch = context->scratch;
        prepare(context, {op.shape.head_size, 0, op.keys(), 1, false, true}, scratch.data());
        const bool alike = op.gathered != nullptr || op.kv.dtype == op.shape.dtype || op.slots == 0;
        const int64_t rows = alike ? 0 : op.heads() * op.slots, sums = op.heads() * op.parts() * op.keys();
        char* room = nullptr;
        const auto carve = [&](char* base, size_t* bytes) {
            Carver carver(base);
            float* const partial = carver.take<float>(sums);
            room = carver.take<char>(rows * op.row_bytes());
            if (bytes != nullptr) *bytes = carver.used();
            return partial;
        };
        size_t bytes = 0;
        carve(nullptr, &bytes);
        float* const partial = carve(context->shared.at_least(bytes), nullptr);
        if (!alike) {
            op.gathered = room;
            context->pool.each(op.heads(), [&](int64_t head, int) { op.gather(context, head, room); });
        }
        each_part(context, op.heads(), op.parts(), [&](int64_t head, int64_t index, int thread) {
            op.part(context, *scratch[static_cast<size_t>(thread)], partial, head, index);
        });
        for (int64_t head = 0; head < op.heads(); ++head) op.add_parts(partial, head);
    });
}

template <class Votes>
h2o_status check(const Votes& call) {
    if (const h2o_status status = check_heads(&call.shape); status != H2O_OK) return status;
    if (call.context == nullptr || call.w <= 0 || call.n < call.w || call.M < 0) return H2O_BAD_ARGUMENT;
    if (!call.q_window || !call.k || !call.score_chunk) return H2O_BAD_ARGUMENT;
    return call.M > 0 && !call.score_mem ? H2O_BAD_ARGUMENT : H2O_OK;
}

}  // namespace

h2o_status run(const calls::CachedCandidateScore& call) {
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (const h2o_status status = h2o_kv_check_keys(call.kv, call.M > 0); status != H2O_OK) return status;
    if (call.M > 0 && !call.memory) return H2O_BAD_ARGUMENT;
    if (!rows_in_range(*call.kv, call.memory, int64_t{call.Hs} * call.M)) return H2O_BAD_ARGUMENT;
    Candidate op{call.shape, call.w,  call.n,      call.M,         call.q_window,   call.k,
                 *call.kv,   nullptr, call.memory, call.score_mem, call.score_chunk};
    return vote(cpu_of(call), op);
}

h2o_status run(const calls::CandidateScore& call) {
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (call.M > 0 && !call.k_mem) return H2O_BAD_ARGUMENT;
    const h2o_kv nothing{};
    const char* const gathered = static_cast<const char*>(call.k_mem);
    Candidate op{call.shape, call.w,   call.n,  call.M,         call.q_window,   call.k,
                 nothing,    gathered, nullptr, call.score_mem, call.score_chunk};
    return vote(cpu_of(call), op);
}

}  // namespace h2o::cpu
