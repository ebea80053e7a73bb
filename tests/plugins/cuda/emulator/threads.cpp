// Blocks, warps and threads of a kernel that runs.

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "emulator.h"
#include "guarded_buffer.h"
#include "races.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulator {
namespace {

constexpr size_t kStackBytes = 256 * 1024;

struct Fiber {
    enum State { kReady, kWarp, kBlock, kDone } state = kReady;
    bool started = false;
    ucontext_t context;
    jmp_buf jump;
    std::vector<unsigned char> stack = std::vector<unsigned char>(kStackBytes);
};

struct Warp {
    void* slots[32];
    void (*compute)(void* const*) = nullptr;
    int arrived = 0;
};

std::vector<std::unique_ptr<Fiber>> fibers;  // kept between blocks: making one is the slow part
std::vector<Warp> warps;
const std::function<void()>* body = nullptr;
std::unique_ptr<GuardedBuffer> shared;
ucontext_t scheduler_context;
jmp_buf scheduler_jump;
unsigned current = 0;
unsigned threads = 0;

void fiber_main() {
    for (;;) {
        (*body)();
        Fiber& fiber = *fibers[current];
        land_copies();
        fiber.state = Fiber::kDone;
        if (_setjmp(fiber.jump) == 0) _longjmp(scheduler_jump, 1);
    }
}

// What a thread told other blocks, and whether it knows what they told.
struct Put {
    unsigned char* to;
    std::vector<unsigned char> bytes;
    void reach_memory() const { std::memcpy(to, bytes.data(), bytes.size()); }
};
struct Told {
    std::list<Put> put;
    bool fenced = false;     // since its block was counted, or began
    bool up_to_date = true;  // its block was not counted since it fenced, or began
};
std::vector<Told> told;
std::list<Put> left_over;

void run(unsigned thread) {
    current = thread;
    threadIdx = {thread, 0, 0};
    Fiber& fiber = *fibers[thread];
    watch_stack(fiber.stack.data(), fiber.stack.size());
    if (_setjmp(scheduler_jump) != 0) return;
    if (fiber.started) _longjmp(fiber.jump, 1);
    fiber.started = true;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
    swapcontext(&scheduler_context, &fiber.context);
}

void block_until_woken(Fiber::State state) {
    Fiber& fiber = *fibers[current];
    fiber.state = state;
    if (_setjmp(fiber.jump) == 0) _longjmp(scheduler_jump, 1);
}

void run_block() {
    for (unsigned i = 0; i < threads; ++i) fibers[i]->state = Fiber::kReady;
    for (Warp& warp : warps) warp.arrived = 0;
    const unsigned warp_count = threads / 32;
    unsigned idle = 0, warp = 0, done = 0;
    while (done < threads) {
        // Mostly stay on one warp, so that warps drift far apart.
        if (random_bits() % 8 == 0 || idle > 0) warp = (warp + 1 + random_bits() % warp_count) % warp_count;
        // Lanes, too, in an order of chance.
        const unsigned order = random_bits(), first = order / 64, step = 2 * (order / 2048) + 1;
        bool progress = false;
        for (unsigned n = 0; n < 32; ++n) {
            const unsigned i = warp * 32 + (first + n * step) % 32;
            if (fibers[i]->state != Fiber::kReady) continue;
            run(i);
            progress = true;
            if (fibers[i]->state == Fiber::kDone) ++done;
        }
        idle = progress ? 0 : idle + 1;
        if (idle < 4) continue;
        // Nothing ran for a while: look at every thread. All waiting at the barrier opens it.
        unsigned ready = 0, waiting = 0;
        for (unsigned i = 0; i < threads; ++i) {
            ready += fibers[i]->state == Fiber::kReady;
            waiting += fibers[i]->state == Fiber::kBlock;
        }
        if (ready > 0) continue;
        if (waiting + done < threads) fail("some lanes of a warp never reached a warp-wide operation");
        for (unsigned i = 0; i < threads; ++i)
            if (fibers[i]->state == Fiber::kBlock) fibers[i]->state = Fiber::kReady;
        watch_barrier();
        idle = 0;
    }
}

}  // namespace

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "cuda emulator: %s (block %u,%u,%u thread %u)\n", what, blockIdx.x, blockIdx.y,
                 blockIdx.z, threadIdx.x);
    std::abort();
}

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
    gridDim = grid;
    blockDim = block;
    threads = block.x;
    if (threads % 32 != 0 || block.y != 1 || block.z != 1) fail("blocks are whole warps in x");
    while (fibers.size() < threads) fibers.push_back(std::make_unique<Fiber>());
    warps.resize(threads / 32);
    body = &kernel;
    std::vector<dim3> blocks;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random_bits() % i]);
    watch_launch();
    const size_t aligned = (shared_bytes + 127) / 128 * 128;
    shared = std::make_unique<GuardedBuffer>(aligned);
    for (const dim3& each : blocks) {
        blockIdx = {each.x, each.y, each.z};
        shared->fill();
        watch_block(shared->data(), aligned);
        told.assign(threads, Told());
        run_block();
        for (Told& thread : told) left_over.splice(left_over.end(), thread.put);
    }
    watch_end();
    shared.reset();
    for (const Put& put : left_over) put.reach_memory();
    left_over.clear();
}

void put_between_blocks(void* to, const void* from, size_t bytes) {
    check_alignment(to, bytes);
    watch_put(to, bytes);
    const auto* first = static_cast<const unsigned char*>(from);
    told[current].put.push_back({static_cast<unsigned char*>(to), {first, first + bytes}});
}

void take_between_blocks(void* to, const void* from, size_t bytes) {
    check_alignment(from, bytes);
    watch_take(from, bytes);
    if (told[current].up_to_date)
        std::memcpy(to, from, bytes);
    else
        std::memset(to, 0xff, bytes);
}

void fence_between_blocks() {
    Told& own = told[current];
    for (const Put& put : own.put) put.reach_memory();
    own.put.clear();
    own.fenced = own.up_to_date = true;
}

unsigned count_arrival(unsigned* count, unsigned all) {
    for (Told& thread : told) {
        if (!thread.fenced) fail("a block was counted before all its threads had fenced what they put");
        thread.fenced = thread.up_to_date = false;
    }
    const unsigned before = *count;
    *count = before + 1 >= all ? 0 : before + 1;
    return before;
}

void check_alignment(const void* pointer, size_t bytes) {
    if ((reinterpret_cast<uintptr_t>(pointer) & (bytes - 1)) != 0) fail("an access to a misaligned address");
}

void check_mask(unsigned lanes) {
    if (lanes != 0xffffffffu) fail("a warp function that not all lanes take part in");
}

unsigned char* shared_memory() {
    return shared->data();
}

void block_barrier() {
    block_until_woken(Fiber::kBlock);
}

void warp_barrier() {
    int nothing = 0;
    warp_collective(&nothing, +[](void* const*) { watch_warp(current / 32); });
}

void warp_collective(void* slot, void (*compute)(void* const*)) {
    const unsigned first = current / 32 * 32;
    Warp& warp = warps[current / 32];
    if (warp.arrived > 0 && warp.compute != compute) fail("lanes of a warp meet in different operations");
    warp.compute = compute;
    warp.slots[current - first] = slot;
    if (++warp.arrived < 32) {
        block_until_woken(Fiber::kWarp);
        return;
    }
    compute(warp.slots);
    warp.arrived = 0;
    for (unsigned i = first; i < first + 32; ++i)
        if (i != current) fibers[i]->state = Fiber::kReady;
}

}  // namespace emulator
