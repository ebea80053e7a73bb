// What lanes of a warp and threads of a block do together.

#include <string>
#include <unordered_map>

#include "../emulator.h"
#include "../matrices.h"
#include "../races.h"
#include "warp.h"

namespace emulator::ptx {
namespace {

using I = const Instruction&;

void check_masks(const Warp& w, I i, size_t index) {
    for (unsigned lane = 0; lane < kLanes; ++lane) check_mask(w.get<uint32_t>(i, index, lane));
}

enum class Way { kXor, kUp, kIndex };

// shfl.sync d|p, a, b, c, mask: `b` chooses the lane, `c` holds the bound and the segments.
template <Way W>
void shuffle(Warp& w, I i) {
    if (!w.all_are_here()) return;
    check_masks(w, i, 5);
    const Register values = w.source(i, 2);  // a copy: it may be the destination
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        const auto by = w.get<uint32_t>(i, 3, lane) & 31, c = w.get<uint32_t>(i, 4, lane);
        const uint32_t segment = c >> 8 & 31, bound = (lane & segment) | (c & 31 & ~segment);
        uint32_t from = lane;
        if (W == Way::kXor) from = lane ^ by;
        if (W == Way::kUp) from = lane - by;
        if (W == Way::kIndex) from = (lane & segment) | (by & ~segment);
        const bool valid = W == Way::kUp ? static_cast<int32_t>(from) >= static_cast<int32_t>(bound)  //
                                         : from <= bound;
        w.set(i, 0, lane, static_cast<uint32_t>(values[valid ? from : lane]));
        w.set(i, 1, lane, valid);
    }
}

template <class RESULT>
void vote(Warp& w, I i) {
    if (!w.all_are_here()) return;
    check_masks(w, i, 2);
    const Lanes lanes = w.lanes_with(w.source(i, 1));
    w.assign(i, [&](unsigned) { return static_cast<RESULT>(lanes); });
}

void synchronize(Warp& w, I i) {
    if (!w.all_are_here()) return;
    check_masks(w, i, 0);
    watch_warp(w.first_thread() / kLanes);
}

template <void (*LOAD)(void* const*)>
void load_matrices(Warp& w, I i) {
    if (!w.all_are_here()) return;
    RowSlot slots[kLanes];
    void* all[kLanes];
    uint32_t loaded[kLanes][4];
    w.each([&](unsigned lane) {
        const unsigned char* const at = w.locate(i, 4, lane, Space::kShared, 16);
        watch_read(at, 16);
        slots[lane] = {at, loaded[lane]};
        all[lane] = &slots[lane];
    });
    LOAD(all);
    for (unsigned lane = 0; lane < kLanes; ++lane)
        for (size_t n = 0; n < 4; ++n) w.set(i, n, lane, loaded[lane][n]);
}

void multiply_matrices(Warp& w, I i) {
    if (!w.all_are_here()) return;
    ProductSlot slots[kLanes];
    void* all[kLanes];
    float c[kLanes][4];
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        ProductSlot& slot = slots[lane];
        slot.c = c[lane];
        for (size_t n = 0; n < 4; ++n) {
            slot.a[n] = w.get<uint32_t>(i, 4 + n, lane);
            c[lane][n] = w.get<float>(i, 10 + n, lane);
        }
        for (size_t n = 0; n < 2; ++n) slot.b[n] = w.get<uint32_t>(i, 8 + n, lane);
        all[lane] = &slot;
    }
    multiply_16x8x16(all);
    for (unsigned lane = 0; lane < kLanes; ++lane)
        for (size_t n = 0; n < 4; ++n) w.set(i, n, lane, c[lane][n]);
}

const std::unordered_map<std::string, Execute>& table() {
    static const std::unordered_map<std::string, Execute> all = {
        {"shfl.sync.bfly.b32", shuffle<Way::kXor>},
        {"shfl.sync.up.b32", shuffle<Way::kUp>},
        {"shfl.sync.idx.b32", shuffle<Way::kIndex>},
        {"vote.sync.ballot.b32", vote<uint32_t>},
        {"vote.sync.any.pred", vote<bool>},
        {"bar.sync", [](Warp& w, I) { w.wait_for_block(); }},
        {"bar.warp.sync", synchronize},
        {"membar.gl", [](Warp&, I) {}},  // stores are seen at once
        {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<load_8x8x4>},
        {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<load_8x8x4_transposed>},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply_matrices},
        {"cp.async.commit_group", [](Warp& w, I) { w.each([](unsigned) { copy_commit(); }); }},
        {"cp.async.wait_group",
         [](Warp& w, I i) { w.each([&](unsigned lane) { copy_wait(w.get<int32_t>(i, 0, lane)); }); }},
    };
    return all;
}

}  // namespace

Execute find_warp_operation(const std::string& opcode) {
    const auto found = table().find(opcode);
    return found == table().end() ? nullptr : found->second;
}

}  // namespace emulator::ptx
