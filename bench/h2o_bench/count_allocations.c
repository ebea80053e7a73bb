// Counts a process's calls of the allocator by size, for allocations.py:
//     cc -O2 -shared -fPIC count_allocations.c -o count_allocations.so -ldl
//     LD_PRELOAD=./count_allocations.so program
// The program reads the counters through allocations_of(): calls that asked for at least so many bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { kClasses = 48 };
static atomic_ullong counts[kClasses];  // by the number of bits of the size

static void count(size_t size) {
    const int bits = size == 0 ? 0 : 64 - __builtin_clzll(size);
    atomic_fetch_add_explicit(&counts[bits < kClasses ? bits : kClasses - 1], 1, memory_order_relaxed);
}

// Calls so far that asked for 2^bits bytes or more.
unsigned long long allocations_of(int bits) {
    unsigned long long sum = 0;
    for (int i = bits + 1; i < kClasses; ++i) sum += atomic_load_explicit(&counts[i], memory_order_relaxed);
    return sum;
}

// dlsym itself allocates before the real functions are known; that little comes from here.
static char early[1 << 16];
static size_t early_used;
static int is_early(const void* p) { return (const char*)p >= early && (const char*)p < early + sizeof early; }
static void* take_early(size_t size) {
    void* const here = early + early_used;
    early_used += (size + 15) / 16 * 16;
    return early_used <= sizeof early ? here : NULL;
}

static void* (*real_malloc)(size_t);
static void* (*real_calloc)(size_t, size_t);
static void* (*real_realloc)(void*, size_t);
static void (*real_free)(void*);
static int (*real_posix_memalign)(void**, size_t, size_t);
static void* (*real_aligned_alloc)(size_t, size_t);
static void* (*real_mmap)(void*, size_t, int, int, int, off_t);

static void find(void) {
    static atomic_int state;
    int none = 0;
    if (!atomic_compare_exchange_strong(&state, &none, 1)) return;
    real_calloc = dlsym(RTLD_NEXT, "calloc");
    real_realloc = dlsym(RTLD_NEXT, "realloc");
    real_free = dlsym(RTLD_NEXT, "free");
    real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    real_mmap = dlsym(RTLD_NEXT, "mmap");
    real_malloc = dlsym(RTLD_NEXT, "malloc");
}

void* malloc(size_t size) {
    if (!real_malloc) find();
    if (!real_malloc) return take_early(size);
    count(size);
    return real_malloc(size);
}

void* calloc(size_t number, size_t size) {
    if (!real_calloc) find();
    if (!real_calloc) return take_early(number * size);  // static memory is zero
    count(number * size);
    return real_calloc(number, size);
}

void* realloc(void* old, size_t size) {
    if (!real_realloc) find();
    count(size);
    if (!is_early(old)) return real_realloc(old, size);
    void* const fresh = malloc(size);
    if (fresh) memcpy(fresh, old, size);
    return fresh;
}

void free(void* p) {
    if (!real_free) find();
    if (p && !is_early(p) && real_free) real_free(p);
}

int posix_memalign(void** p, size_t alignment, size_t size) {
    if (!real_posix_memalign) find();
    count(size);
    return real_posix_memalign(p, alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
    if (!real_aligned_alloc) find();
    count(size);
    return real_aligned_alloc(alignment, size);
}

void* mmap(void* where, size_t size, int protection, int flags, int file, off_t offset) {
    if (!real_mmap) find();
    if (flags & MAP_ANONYMOUS) count(size);
    return real_mmap(where, size, protection, flags, file, offset);
}
