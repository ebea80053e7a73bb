// MemoryFusedAttention and TiledMemoryAttention: every row sees every key of its score head's memory set.
// Cache rows are packed in place, and each block is fused when it is done. Row tiles with their own memory
// sets are one call, because few heads alone would not keep all threads busy.
#include "fuse.h"
#include "sweep.h"

namespace h2o {
namespace {

constexpr int64_t kKeyBlock = 1024;

struct Memory {
    const h2o_shape& shape;
    int64_t n;              // query rows
    int64_t slots;          // M: keys of a memory set
    const void* q;          // [n, Hq, d] of shape.dtype
    const h2o_kv& kv;       // keys and values of the cache
    const int32_t* memory;  // [tiles, Hs, M] cache rows
    void* o;                // [n, Hq, dv] of shape.dtype, in and out
    float* m;               // [n, Hq] in and out: maxima of the scores
    float* l;               // [n, Hq] in and out: sums of exp(score - m)
    float* colsum;          // [Hs, M] out: sums of probabilities by key; or null
    int64_t tile;           // rows that share a memory set
    int64_t index = 0;      // of the tile, if this is one

    // The rows of one tile alone.
    Memory only(int64_t which) const {
        const int64_t first = which * tile, states = first * shape.query_heads;
        Memory result = *this;
        result.index = which;
        result.n = std::min(tile, n - first);
        result.q = static_cast<const char*>(q) + first * query_bytes(shape);
        result.o = static_cast<char*>(o) + first * output_bytes(shape);
        result.m += states;
        result.l += states;
        result.memory += which * shape.score_heads * slots;
        return result;
    }

    int64_t tiles() const { return (n + tile - 1) / tile; }
    int64_t heads() const { return own_heads(shape); }
    int64_t spanned() const { return heads() / shape.score_heads; }  // that share a memory
    // Of a whole tile.
    int64_t rows() const { return std::min(n, tile) * (shape.query_heads / heads()); }
    int64_t blocks() const { return (rows() + kLanes - 1) / kLanes; }
    int64_t parts() const { return std::clamp<int64_t>(blocks() / 8, 1, 8); }
    int64_t key_block() const { return colsum != nullptr ? slots : std::min(slots, kKeyBlock); }

    KeyRows keys(int64_t head) const {
        return cache_rows(shape, kv_head(shape, heads(), head), kv, memory + head / spanned() * slots, slots);
    }

    Sweep sweep(const h2o_cpu* context, int64_t head) const {
        Sweep result = head_sweep(context, shape, heads(), head, q, n);
        result.out = static_cast<char*>(o);
        result.keys = keys(head);
        result.total_keys = slots;
        result.offset = slots;
        result.key_block = key_block();
        result.unit = index * heads() + head;
        return result;
    }

    void part(const h2o_cpu* context, SweepScratch& scratch, float* partial, int64_t head, int64_t parts,
              int64_t part) const {
        const Sweep rows = sweep(context, head);
        const int64_t begin = even_part(rows.blocks(), parts, part);
        const int64_t end = even_part(rows.blocks(), parts, part + 1);
        if (begin == end) return;  // the last tile may have few rows
        if (colsum != nullptr) {
            std::memset(scratch.colsum, 0, static_cast<size_t>(slots * kColsumLanes) * sizeof(float));
        }
        rows.run(scratch, begin, end, 0, slots, colsum != nullptr,
                 [&](int64_t block, int64_t slot) { fuse_block(rows, scratch, block, slot); });
        if (colsum == nullptr) return;
        float* const sums = partial + (head * parts + part) * slots;
        std::memset(sums, 0, static_cast<size_t>(slots) * sizeof(float));
        context->kernels->sum_lanes(scratch.colsum, slots, sums);
    }

    void fuse_block(const Sweep& rows, const SweepScratch& scratch, int64_t block, int64_t slot) const {
        float keep[kLanes], factor[kLanes];
        for (int64_t r = 0; r < rows.lanes(block); ++r) {
            const int64_t at = rows.at(block * kLanes + r);
            const float own_l = scratch.l[slot * kLanes + r];
            const Fused state = fuse(m[at], l[at], scratch.m[slot * kLanes + r], own_l);
            keep[r] = state.weight_a;
            factor[r] = state.weight_b / own_l;
            m[at] = state.m;
            l[at] = state.l;
        }
        rows.store(scratch, block, slot, keep, factor);
    }

    SweepSize size() const {
        const bool single = key_block() == slots;
        return {shape.head_size,  value_size(shape), key_block(), single ? 1 : blocks() / parts() + 1, true,
                colsum != nullptr};
    }

    h2o_status run(h2o_cpu* context) const {
        return guarded(context, [&] {
            std::vector<SweepScratch*>& scratch = context->scratch;
            prepare(context, size());
            float* partial = nullptr;
            if (colsum != nullptr) partial = context->shared_floats(heads() * parts() * slots);
            each_part(context, tiles() * heads(), parts(), [&](int64_t unit, int64_t part, int thread) {
                SweepScratch& sweep_scratch = *scratch[static_cast<size_t>(thread)];
                only(unit / heads()).part(context, sweep_scratch, partial, unit % heads(), parts(), part);
            });
            if (colsum == nullptr) return;
            const int64_t count = spanned() * parts();
            for (int64_t set = 0; set < shape.score_heads; ++set)
                add_parts(partial + set * count * slots, count, slots, slots, colsum + set * slots, 1);
        });
    }
};

}  // namespace
}  // namespace h2o

namespace h2o::cpu {

namespace {

// In place only: this is how the runtime calls it.
template <class Fused>
h2o_status fuse_memory(const Fused& call, int64_t tile, float* colsum) {
    h2o_cpu* const context = cpu_of(call);
    const h2o_shape& shape = call.shape;
    const int64_t n = call.n, slots = call.M;
    if (const h2o_status status = check_shape(&shape); status != H2O_OK) return status;
    if (context == nullptr || n < 0 || tile <= 0 || slots < 0) return H2O_BAD_ARGUMENT;
    if (call.o != call.o_intra) return H2O_UNSUPPORTED;
    if (const h2o_status status = h2o_kv_check(call.kv, slots > 0); status != H2O_OK) return status;
    if (slots == 0) return H2O_OK;  // nothing to add to the state
    const int64_t tiles = std::max<int64_t>((n + tile - 1) / tile, 1);
    if (!call.memory || !rows_in_range(*call.kv, call.memory, tiles * shape.score_heads * slots))
        return H2O_BAD_ARGUMENT;
    if (n == 0) {
        if (colsum != nullptr) std::fill(colsum, colsum + shape.score_heads * slots, 0.0f);
        return H2O_OK;
    }
    if (!call.q || !call.o || !call.m_intra || !call.l_intra) return H2O_BAD_ARGUMENT;
    return Memory{shape,        n,      slots, call.q, *call.kv, call.memory, call.o, call.m_intra,
                  call.l_intra, colsum, tile}
        .run(context);
}

}  // namespace

h2o_status run(const calls::MemoryFusedAttention& call) {
    return fuse_memory(call, std::max<int64_t>(call.n, 1), call.colsum);
}

h2o_status run(const calls::TiledMemoryAttention& call) {
    return fuse_memory(call, call.tile, nullptr);
}

}  // namespace h2o::cpu
