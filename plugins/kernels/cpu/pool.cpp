#include "pool.h"

#include <pthread.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace h2o {
namespace {

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// One layer follows the last within microseconds, so a worker spins briefly before it sleeps. Spinning longer
// would take the core from the dense graphs' own threads.
constexpr int kSpins = 500;

}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> hold(mutex_);
        stop_ = true;
        ++round_;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int64_t count, Call call, void* self) {
    if (count <= 0) return;
    if (size() == 1 || count == 1) {
        for (int64_t i = 0; i < count; ++i) call(self, i, 0);
        return;
    }
    if (executor_.run != nullptr) {
        count_ = count;
        call_ = call;
        self_ = self;
        next_.store(0, std::memory_order_relaxed);
        const auto work = [](void* pool, size_t thread) {
            static_cast<Pool*>(pool)->drain(static_cast<int>(thread));
        };
        return executor_.run(executor_.self, size(), work, this);
    }
    {
        std::lock_guard<std::mutex> hold(mutex_);
        count_ = count;
        call_ = call;
        self_ = self;
        next_.store(0, std::memory_order_relaxed);
        open_ = true;
        round_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(0);
    {
        std::lock_guard<std::mutex> hold(mutex_);
        open_ = false;
    }
    // Waits only for workers that joined: a worker that has no core yet finds the round closed. The caller
    // spins, then yields, so that a worker that lost its core can get one back.
    for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
        if (spins < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

void Pool::drain(int thread) {
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= count_) return;
        call_(self_, item, thread);
    }
}

void Pool::await_round(uint64_t seen) {
    for (int i = 0; i < kSpins; ++i) {
        if (round_.load(std::memory_order_acquire) != seen) return;
        relax();
    }
    std::unique_lock<std::mutex> hold(mutex_);
    // std::condition_variable::wait is this call, but GCC 12 added a version of it that older libraries lack.
    while (round_.load(std::memory_order_acquire) == seen)
        pthread_cond_wait(wake_.native_handle(), mutex_.native_handle());
}

bool Pool::join(uint64_t* seen) {
    std::lock_guard<std::mutex> hold(mutex_);
    *seen = round_.load(std::memory_order_relaxed);
    if (open_) busy_.fetch_add(1, std::memory_order_relaxed);
    return open_;
}

void Pool::serve(int thread) {
    uint64_t seen = 0;
    for (;;) {
        await_round(seen);
        const bool joined = join(&seen);
        if (stop_) return;  // after the join, no later round follows
        if (!joined) continue;
        drain(thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace h2o
