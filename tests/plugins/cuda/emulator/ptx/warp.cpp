// What lanes of a warp and threads of a block do together.

#include <string>
#include <unordered_map>

#include "../emulated_ptx.h"
#include "../emulator.h"
#include "../races.h"
#include "kernel.h"

namespace emulator::ptx {
namespace {

using I = const Instruction&;

// shfl.sync d|p, a, b, c, mask: `b` chooses the lane, `c` holds the bound and the segments.
struct Shuffle {
    uint32_t value, b, c;
    bool valid;
    uint32_t result;

    uint32_t segment() const { return c >> 8 & 31; }
    uint32_t bound(uint32_t lane) const { return (lane & segment()) | (c & 31 & ~segment()); }
};

enum class Way { kXor, kUp, kIndex };

template <Way W>
void exchange(void* const* lanes) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
        auto& own = *static_cast<Shuffle*>(lanes[lane]);
        const uint32_t by = own.b & 31;
        uint32_t from = lane;
        if (W == Way::kXor) from = lane ^ by;
        if (W == Way::kUp) from = lane - by;
        if (W == Way::kIndex) from = (lane & own.segment()) | (by & ~own.segment());
        own.valid = W == Way::kUp ? static_cast<int32_t>(from) >= static_cast<int32_t>(own.bound(lane))
                                  : from <= own.bound(lane);
        own.result = static_cast<Shuffle*>(lanes[own.valid ? from : lane])->value;
    }
}

template <Way W>
void shuffle(Thread& t, I i) {
    check_mask(t.get<uint32_t>(i, 5));
    Shuffle slot{t.get<uint32_t>(i, 2), t.get<uint32_t>(i, 3), t.get<uint32_t>(i, 4), false, 0};
    warp_collective(&slot, exchange<W>);
    t.set(i, 0, slot.result);
    t.set(i, 1, slot.valid);
}

uint32_t ballot(Thread& t, I i) {
    check_mask(t.get<uint32_t>(i, 2));
    return __ballot_sync(~0u, t.get<bool>(i, 1));
}

template <void (*LOAD)(uint32_t (&)[4], h2o::cuda::shared_t)>
void load_matrices(Thread& t, I i) {
    bool is_device_memory = false;
    Instruction row = i;
    row.space = Space::kShared;
    const unsigned char* const at = t.locate(row, 4, 16, is_device_memory);
    watch_read(at, 16);
    uint32_t loaded[4];
    LOAD(loaded, h2o::cuda::shared_address(at));
    for (size_t n = 0; n < 4; ++n) t.set(i, n, loaded[n]);
}

void multiply_matrices(Thread& t, I i) {
    uint32_t a[4];
    float c[4];
    for (size_t n = 0; n < 4; ++n) {
        a[n] = t.get<uint32_t>(i, 4 + n);
        c[n] = t.get<float>(i, 10 + n);
    }
    h2o::cuda::mma_16x8x16(c, a, t.get<uint32_t>(i, 8), t.get<uint32_t>(i, 9));
    for (size_t n = 0; n < 4; ++n) t.set(i, n, c[n]);
}

const std::unordered_map<std::string, Execute>& table() {
    static const std::unordered_map<std::string, Execute> all = {
        {"shfl.sync.bfly.b32", shuffle<Way::kXor>},
        {"shfl.sync.up.b32", shuffle<Way::kUp>},
        {"shfl.sync.idx.b32", shuffle<Way::kIndex>},
        {"vote.sync.ballot.b32", [](Thread& t, I i) { t.set(i, 0, ballot(t, i)); }},
        {"vote.sync.any.pred", [](Thread& t, I i) { t.set(i, 0, ballot(t, i) != 0); }},
        {"bar.sync", [](Thread&, I) { block_barrier(); }},
        {"bar.warp.sync",
         [](Thread& t, I i) {
             check_mask(t.get<uint32_t>(i, 0));
             warp_barrier();
         }},
        {"membar.gl", [](Thread&, I) {}},  // stores are seen at once
        {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<h2o::cuda::load_matrices>},
        {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
         load_matrices<h2o::cuda::load_matrices_transposed>},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply_matrices},
        {"cp.async.commit_group", [](Thread&, I) { copy_commit(); }},
        {"cp.async.wait_group", [](Thread& t, I i) { copy_wait(t.get<int32_t>(i, 0)); }},
    };
    return all;
}

}  // namespace

Execute find_warp_operation(const std::string& opcode) {
    const auto found = table().find(opcode);
    return found == table().end() ? nullptr : found->second;
}

}  // namespace emulator::ptx
