#include "sweep.h"

#include <cmath>

namespace h2o {

SweepScratch* carve(Carver& carver, const SweepSize& size) {
    const int64_t keys = round_up(size.keys, kPanel);
    SweepScratch* const scratch = carver.take<SweepScratch>(1);
    SweepScratch carved{};
    carved.rows = carver.take<const void*>(std::max(keys, kLanes));
    carved.more = carver.take<const void*>(keys);
    carved.scales = carver.take<float>(keys);
    carved.k = carver.take<float>(keys * size.d);
    if (size.values) carved.v = carver.take<float>(value_room(size.keys) * round_up(size.dv, kPanel));
    carved.p = carver.take<float>((size.scores > 0 ? size.scores : keys) * kLanes);
    carved.q = carver.take<float>(size.blocks * size.d * kLanes);
    const int64_t states = size.blocks + size.more_states;
    if (size.values) carved.o = carver.take<float>(states * round_up(size.dv, kPanel) * kLanes);
    carved.m = carver.take<float>(states * kLanes);
    carved.l = carver.take<float>(states * kLanes);
    if (size.colsum) carved.colsum = carver.take<float>(keys * kColsumLanes);
    carved.packed_unit = -1;
    if (scratch != nullptr) *scratch = carved;
    return scratch;
}

void prepare(h2o_cpu* context, const SweepSize& size) {
    const auto own = carve_own(context, [&](Carver& carver) { return carve(carver, size); });
    for (int thread = 0; thread < context->pool.size(); ++thread)
        context->scratch[static_cast<size_t>(thread)] = own(thread);
}

Sweep head_sweep(const h2o_cpu* context, const h2o_shape& shape, int64_t score_heads, int64_t head,
                 const void* q, int64_t tokens) {
    Sweep sweep{};
    sweep.kernels = context->kernels;
    sweep.attention = context->attention;
    sweep.dtype = shape.dtype;
    sweep.scale = shape.scale;
    sweep.softcap = shape.softcap;
    sweep.d = shape.head_size;
    sweep.dv = value_size(shape);
    sweep.query_heads = shape.query_heads;
    sweep.group = shape.query_heads / score_heads;
    sweep.first_head = head * sweep.group;
    sweep.tokens = tokens;
    sweep.q = static_cast<const char*>(q);
    return sweep;
}

// Keys, or values, [first, first + count) of a chain of key rows, all in one format.
static RowList list_rows(const KeyRows& keys, bool values, int64_t first, int64_t count,
                         SweepScratch& scratch) {
    const KeyRows* part = &keys;
    while (part != nullptr && first >= part->count) {
        first -= part->count;
        part = part->then;
    }
    const bool scaled = keys.kv.dtype == H2O_I8;
    for (int64_t i = 0; i < count && part != nullptr; ++i, ++first) {
        while (part != nullptr && first == part->count) {
            part = part->then;
            first = 0;
        }
        if (part == nullptr) break;
        const int64_t row = part->index == nullptr ? first : part->index[first];
        scratch.more[i] = values ? part->value(row) : part->key(row);
        if (scaled) scratch.scales[i] = values ? part->value_scale(row) : part->key_scale(row);
    }
    return {scratch.more, keys.kv.dtype, scaled ? scratch.scales : nullptr};
}

void Sweep::pack(SweepScratch& scratch, int64_t first_key, int64_t count, bool reusable) const {
    if (reusable && scratch.packed_unit == unit && scratch.packed_keys >= count) return;
    scratch.packed_unit = reusable ? unit : -1;
    scratch.packed_keys = count;
    attention->pack_keys(list_rows(keys, false, first_key, count, scratch), count, d, scratch.k);
    if (keys.v == nullptr) return;
    attention->pack_values(list_rows(keys, true, first_key, count, scratch), count, dv, value_room(key_block),
                           scratch.v);
}

void Sweep::step(SweepScratch& scratch, int64_t block, int64_t slot, int64_t first_key, int64_t count,
                 bool fresh, bool colsum) const {
    const int64_t begin = block * block_rows, used = lanes(block);
    float* const q_packed = scratch.q + slot * d * kLanes;
    if (fresh) {
        for (int64_t r = 0; r < used; ++r) scratch.rows[r] = q + at(begin + r) * d * element_size(dtype);
        attention->pack_queries({scratch.rows, dtype, nullptr}, used, d, scale, q_packed);
    }
    // Skips whole panels of keys that no row sees.
    const int64_t hidden = std::clamp<int64_t>(first_seen(begin) - first_key, 0, count);
    const int64_t skipped = hidden / kPanel * kPanel;
    float seen[kLanes], first[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t row = begin + std::min(r, used - 1), start = first_key + skipped;
        seen[r] = static_cast<float>(std::clamp<int64_t>(visible(row) - start, 0, count - skipped));
        first[r] = static_cast<float>(std::clamp<int64_t>(first_seen(row) - start, 0, count - skipped));
    }
    BlockArgs args{};
    args.d = d;
    args.dv = dv;
    args.keys = hidden == count ? 0 : static_cast<int64_t>(seen[used - 1]);
    args.unmasked = static_cast<int64_t>(seen[0]);
    args.first = window > 0 ? first : nullptr;
    args.hiding = static_cast<int64_t>(first[used - 1]);
    if (args.keys == 0 && !fresh) return;
    args.lanes = used;
    args.rows = used <= 16 ? 16 : used <= 32 ? 32 : 0;
    args.q = q_packed;
    args.k = scratch.k + skipped * attention->key_words(d);
    args.v = keys.v == nullptr ? nullptr : scratch.v + attention->value_words(skipped);
    args.v_keys = value_room(key_block);
    args.visible = seen;
    args.softcap = softcap;
    args.p = scratch.p;
    args.m = scratch.m + slot * kLanes;
    args.l = scratch.l + slot * kLanes;
    args.o = scratch.o + slot * output_floats();
    args.fresh = fresh;
    args.colsum = colsum ? scratch.colsum : nullptr;
    args.votes = votes;
    args.voted = voted;
    if (args.keys == 0) std::memset(args.o, 0, static_cast<size_t>(output_floats()) * sizeof(float));
    void* rows[kLanes];
    if (out != nullptr) {
        for (int64_t r = 0; r < used; ++r) rows[r] = row_of_out(begin + r);
        args.out = rows;
        args.out_bytes = dv * element_size(dtype);
    }
    attention->attend(args);
}

void Sweep::store(const SweepScratch& scratch, int64_t block, int64_t slot, const float* keep,
                  const float* factor) const {
    const int64_t used = lanes(block);
    void* rows[kLanes];
    for (int64_t r = 0; r < used; ++r) rows[r] = row_of_out(block * block_rows + r);
    kernels->store_rows(scratch.o + slot * output_floats(), keep, factor, dtype, used, dv, rows);
}

void Sweep::store_state(const SweepScratch& scratch, int64_t block, int64_t slot, float* m, float* l) const {
    const float* const block_l = scratch.l + slot * kLanes;
    float factor[kLanes];
    for (int64_t r = 0; r < lanes(block); ++r) factor[r] = block_l[r] > 0.0f ? 1.0f / block_l[r] : 0.0f;
    store(scratch, block, slot, nullptr, factor);
    if (m == nullptr) return;
    for (int64_t r = 0; r < lanes(block); ++r) {
        m[at(block * block_rows + r)] = scratch.m[slot * kLanes + r];
        l[at(block * block_rows + r)] = block_l[r];
    }
}

int64_t even_part(int64_t blocks, int64_t parts, int64_t part) {
    return blocks * part / parts;
}

int64_t triangle_part(int64_t blocks, int64_t parts, int64_t part) {
    const double share = std::sqrt(static_cast<double>(part) / static_cast<double>(parts));
    return part == parts ? blocks : static_cast<int64_t>(static_cast<double>(blocks) * share);
}

}  // namespace h2o
