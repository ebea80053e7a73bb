// cp.async: copies that are under way, of each thread.

#include <cstring>
#include <vector>

#include "cuda_runtime.h"
#include "emulator.h"
#include "races.h"

namespace emulator {
namespace {

struct Copy {
    void* to;
    const void* from;
    int bytes, valid_bytes, group;
    bool landed;
};

struct Copies {
    std::vector<Copy> under_way;
    int group = 0;
};
std::vector<Copies> of_threads;

Copies& own() {
    if (of_threads.size() <= threadIdx.x) of_threads.resize(threadIdx.x + 1);
    return of_threads[threadIdx.x];
}

void land(const Copy& copy) {
    if (copy.landed) return;
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.valid_bytes));
    std::memset(static_cast<char*>(copy.to) + copy.valid_bytes, 0,
                static_cast<size_t>(copy.bytes - copy.valid_bytes));
}

}  // namespace

void copy_async(void* to, const void* from, int bytes, int valid_bytes) {
    check_alignment(to, static_cast<size_t>(bytes));
    check_alignment(from, static_cast<size_t>(bytes));
    watch_write(to, static_cast<size_t>(bytes));
    if (valid_bytes > 0) watch_read(from, static_cast<size_t>(valid_bytes));
    Copies& copies = own();
    Copy copy{to, from, bytes, valid_bytes, copies.group, false};
    if (random_bits() % 2 == 0) {
        land(copy);
        copy.landed = true;
    }
    copies.under_way.push_back(copy);
}

void copy_commit() {
    ++own().group;
}

void copy_wait(int groups_left) {
    Copies& copies = own();
    size_t kept = 0;
    for (const Copy& copy : copies.under_way) {
        if (copy.group >= copies.group - groups_left) {
            copies.under_way[kept++] = copy;
            continue;
        }
        land(copy);
        watch_write(copy.to, static_cast<size_t>(copy.bytes));  // until now the copy was under way
    }
    copies.under_way.resize(kept);
}

void land_copies() {
    Copies& copies = own();
    for (const Copy& copy : copies.under_way) land(copy);
    copies.under_way.clear();
}

}  // namespace emulator
