// A fixed set of threads that share numbered items. The caller works too, so size 1 starts no thread.
// Alternatively the caller's own threads do all of the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "h2o/cpu.h"

namespace h2o {

class Pool {
  public:
    explicit Pool(int threads);
    explicit Pool(const h2o_executor& executor) : executor_(executor) {}
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const {
        return executor_.run != nullptr ? executor_.threads : static_cast<int>(workers_.size()) + 1;
    }

    // Whether the caller's own threads do the work; they are awake before and after it.
    bool awake() const { return executor_.run != nullptr; }

    // Calls work(item, thread) once for every item below count and returns when all are done. Items start in
    // ascending order, on any free thread: results must not depend on the thread.
    template <class Work>
    void each(int64_t count, Work&& work) {
        auto call = [](void* self, int64_t item, int thread) {
            (*static_cast<std::remove_reference_t<Work>*>(self))(item, thread);
        };
        run(count, call, &work);
    }

  private:
    using Call = void (*)(void*, int64_t, int);

    void run(int64_t count, Call call, void* self);
    void drain(int thread);
    void serve(int thread);
    void await_round(uint64_t seen);
    bool join(uint64_t* seen);

    const h2o_executor executor_{};  // if its `run` is null, workers_ are the threads
    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};  // workers in the current round
    std::atomic<bool> stop_{false};
    bool open_ = false;  // may workers join the round? Guarded by mutex_, like the members below
    int64_t count_ = 0;
    Call call_ = nullptr;
    void* self_ = nullptr;
};

}  // namespace h2o
