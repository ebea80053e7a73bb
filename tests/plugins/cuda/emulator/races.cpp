#include "races.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "cuda_runtime.h"

namespace emulator {
namespace {

constexpr uint32_t kFlag = 1u << 31;  // of a writer: it put. Of a reader: another block read, too
constexpr size_t kSharedGrain = 2;    // bytes, for threads store halves
constexpr size_t kLineBytes = 16;     // of shared memory, which most accesses are to
constexpr size_t kDeviceGrain = 4;
constexpr uintptr_t kPageSize = 4096;  // no larger than the machine's

// An access to shared memory. `phase` counts the barriers of all blocks there ever were, `warp_phase` the
// __syncwarps of the thread's warp.
struct Access {
    uint32_t phase = 0;
    uint16_t thread = 0, warp_phase = 0;
};
struct SharedCell {
    Access write, read;
    bool other_lanes = false, other_warps = false;  // read too
};
// Its parts have cells of their own from the phase's first access to one of them.
struct SharedLine {
    SharedCell whole;
    uint32_t parted = 0;  // the phase
    std::array<SharedCell, kLineBytes / kSharedGrain> parts;
};

// Only the host's thread that runs a kernel has it set: others run instrumented code of the host.
thread_local bool watching __attribute__((tls_model("initial-exec"))) = false;

std::vector<DeviceRange> ranges;

// Which allocation a page of memory is of, if any: none shares a page with another. Kernels touch few pages
// at a time; threadIdx, parameters and constants lie on some that are of none.
struct Page {
    uintptr_t number = 0;
    const DeviceRange* range = nullptr;
};
std::array<Page, 256> pages;
uint32_t first_of_launch = 1, block = 0;  // serial numbers
const unsigned char *shared_begin, *shared_end, *stack_begin;
size_t stack_bytes = 0;
std::vector<SharedLine> shared_lines;
std::vector<uint16_t> warp_phases(32);
uint32_t phase = 0;

[[noreturn]] void race(const char* what) {
    watching = false;
    void* frames[12];
    backtrace_symbols_fd(frames, backtrace(frames, 12), STDERR_FILENO);
    fail(what);
}

// Whether the thread that runs now may do so after `before`, of which one is a write.
bool races_with(const Access& before, unsigned thread) {
    if (before.phase != phase || before.thread == thread) return false;
    return before.thread / 32 != thread / 32 || before.warp_phase == warp_phases[thread / 32];
}

void touch_shared(SharedCell& cell, bool writes) {
    const auto thread = static_cast<uint16_t>(threadIdx.x);
    const Access now = {phase, thread, warp_phases[thread / 32]};
    if (races_with(cell.write, thread)) race("two threads race in shared memory: one of them wrote before");
    if (writes) {
        const bool is_read = cell.read.phase == phase;
        const bool lanes = is_read && cell.other_lanes && cell.read.warp_phase == now.warp_phase;
        if ((is_read && cell.other_warps) || lanes || races_with(cell.read, thread))
            race("two threads race in shared memory: one of them writes what others read");
        cell.write = now;
    } else if (cell.read.phase != phase) {
        cell.read = now;
        cell.other_lanes = cell.other_warps = false;
    } else if (cell.read.thread / 32 != thread / 32) {
        cell.other_warps = true;
    } else if (cell.read.warp_phase != now.warp_phase) {
        cell.read = now;
        cell.other_lanes = false;
    } else if (cell.read.thread != thread) {
        cell.other_lanes = true;
    }
}

// Bytes of one line.
inline void touch_line(SharedLine& line, size_t first, size_t bytes, bool writes) {
    if (line.parted != phase) {
        if (bytes == kLineBytes) return touch_shared(line.whole, writes);
        line.parts.fill(line.whole);
        line.parted = phase;
    }
    for (size_t i = first / kSharedGrain; i <= (first + bytes - 1) / kSharedGrain; ++i)
        touch_shared(line.parts[i], writes);
}

bool of_another_block(uint32_t cell) {
    const uint32_t serial = cell & ~kFlag;
    return serial >= first_of_launch && serial != block;
}

void touch_device(DeviceCell& cell, bool writes, bool between_blocks) {
    const bool put = (cell.writer & kFlag) != 0;
    if (of_another_block(cell.writer) && !(between_blocks && !writes && put))
        race("two blocks race in device memory: one of them wrote before");
    if (writes) {
        const bool several = (cell.reader & kFlag) != 0 && (cell.reader & ~kFlag) >= first_of_launch;
        if (several || of_another_block(cell.reader))
            race("two blocks race in device memory: one of them writes what others read");
        cell.writer = block | (between_blocks ? kFlag : 0);
    } else if (!between_blocks && cell.reader != block) {
        cell.reader = block | (of_another_block(cell.reader) ? kFlag : 0);
    }
}

const DeviceRange* range_of_page(uintptr_t number) {
    const auto* const end = reinterpret_cast<const unsigned char*>((number + 1) * kPageSize);
    const auto after =
        std::lower_bound(ranges.begin(), ranges.end(), end,
                         [](const DeviceRange& range, const auto* at) { return range.begin < at; });
    const bool found = after != ranges.begin() && (after - 1)->end > end - kPageSize;
    return found ? &*(after - 1) : nullptr;
}

// The range that holds an address; none: null.
const DeviceRange* find_range(const unsigned char* at) {
    const uintptr_t number = reinterpret_cast<uintptr_t>(at) / kPageSize;
    Page& page = pages[number % pages.size()];
    if (page.number != number) page = {number, range_of_page(number)};
    const DeviceRange* const range = page.range;
    return range && at >= range->begin && at < range->end ? range : nullptr;
}

template <bool WRITES, bool BETWEEN_BLOCKS>
[[gnu::noinline]] void touch_memory(const unsigned char* from, size_t bytes) {
    if (from >= shared_begin && from < shared_end) {
        for (auto at = static_cast<size_t>(from - shared_begin); bytes > 0;) {
            const size_t here = std::min(bytes, kLineBytes - at % kLineBytes);
            touch_line(shared_lines[at / kLineBytes], at % kLineBytes, here, WRITES);
            at += here;
            bytes -= here;
        }
        return;
    }
    const DeviceRange* const range = find_range(from);
    if (!range) return;
    const auto first = static_cast<size_t>(from - range->begin) / kDeviceGrain;
    const size_t last = (static_cast<size_t>(from - range->begin) + bytes - 1) / kDeviceGrain;
    for (size_t i = first; i <= last; ++i) touch_device(range->cells[i], WRITES, BETWEEN_BLOCKS);
}

// Most accesses are to a thread's own stack.
template <bool WRITES, bool BETWEEN_BLOCKS = false>
[[gnu::always_inline]] inline void touch(const void* at, size_t bytes) {
    const auto* const from = static_cast<const unsigned char*>(at);
    if (!watching || static_cast<size_t>(from - stack_begin) < stack_bytes) return;
    touch_memory<WRITES, BETWEEN_BLOCKS>(from, bytes);
}

}  // namespace

void watch_launch() {
    ranges = device_ranges();
    pages.fill({});
    first_of_launch = block + 1;
    watching = true;
}

void watch_block(const unsigned char* shared, size_t shared_bytes) {
    if (++block == kFlag) fail("more blocks than there are serial numbers");
    ++phase;
    shared_begin = shared;
    shared_end = shared + shared_bytes;
    if (shared_lines.size() < shared_bytes / kLineBytes) shared_lines.resize(shared_bytes / kLineBytes);
}

void watch_stack(const void* begin, size_t bytes) {
    stack_begin = static_cast<const unsigned char*>(begin);
    stack_bytes = bytes;
}

void watch_barrier() {
    ++phase;
}

void watch_warp(unsigned warp) {
    ++warp_phases[warp];
}

void watch_end() {
    watching = false;
}

void watch_read(const void* at, size_t bytes) {
    touch<false>(at, bytes);
}
void watch_write(const void* at, size_t bytes) {
    touch<true>(at, bytes);
}
void watch_put(const void* at, size_t bytes) {
    touch<true, true>(at, bytes);
}
void watch_take(const void* at, size_t bytes) {
    touch<false, true>(at, bytes);
}

}  // namespace emulator

// The names that compilers call.
extern "C" {
#define H2O_WATCH(bytes)                                 \
    void __tsan_read##bytes(const void* at) {            \
        emulator::watch_read(at, bytes);                 \
    }                                                    \
    void __tsan_write##bytes(const void* at) {           \
        emulator::watch_write(at, bytes);                \
    }                                                    \
    void __tsan_unaligned_read##bytes(const void* at) {  \
        emulator::watch_read(at, bytes);                 \
    }                                                    \
    void __tsan_unaligned_write##bytes(const void* at) { \
        emulator::watch_write(at, bytes);                \
    }                                                    \
    void __tsan_volatile_read##bytes(const void* at) {   \
        emulator::watch_read(at, bytes);                 \
    }                                                    \
    void __tsan_volatile_write##bytes(const void* at) {  \
        emulator::watch_write(at, bytes);                \
    }
H2O_WATCH(1)
H2O_WATCH(2)
H2O_WATCH(4)
H2O_WATCH(8)
H2O_WATCH(16)
#undef H2O_WATCH

void __tsan_read_range(const void* at, size_t bytes) {
    emulator::watch_read(at, bytes);
}
void __tsan_write_range(const void* at, size_t bytes) {
    emulator::watch_write(at, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Of the guards of constants within functions.
unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
}
