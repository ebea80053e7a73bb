// A context: the instruction set in use, the threads, and the scratch memory they work in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "h2o/cpu.h"
#include "h2o/operator.h"
#include "isa.h"
#include "pool.h"

namespace h2o {

struct SweepScratch;

// Memory that only grows. Large blocks are aligned for huge pages, because strides through packed keys and
// scores would otherwise miss the TLB.
class Arena {
  public:
    Arena() = default;
    Arena(Arena&& other) noexcept : data_(other.data_), size_(other.size_) {
        other.data_ = nullptr;
        other.size_ = 0;
    }
    ~Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    char* at_least(size_t bytes);  // throws std::bad_alloc
    size_t size() const { return size_; }

  private:
    char* data_ = nullptr;
    size_t size_ = 0;
};

// Carves arrays from a block; with a null block, only adds up the size.
class Carver {
  public:
    explicit Carver(char* base) : base_(base) {}
    template <class T>
    T* take(int64_t count) {
        T* const here = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
        used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
        return here;
    }
    size_t used() const { return used_; }

  private:
    char* base_;
    size_t used_ = 0;
};

}  // namespace h2o

struct h2o_cpu {
    // threads: a number, or an h2o_executor
    template <class Threads>
    h2o_cpu(Threads threads, const h2o::KernelTable* table, const h2o::BlockAttention* blocks)
        : kernels(table),
          attention(blocks),
          pool(threads),
          arenas(static_cast<size_t>(pool.size())),
          scratch(arenas.size()) {}

    float* shared_floats(int64_t count) {
        return reinterpret_cast<float*>(shared.at_least(static_cast<size_t>(count) * sizeof(float)));
    }

    const h2o::KernelTable* kernels;
    const h2o::BlockAttention* attention;  // in the current precision
    h2o::Pool pool;
    std::mutex one_call;
    std::vector<h2o::Arena> arenas;           // one a thread
    std::vector<h2o::SweepScratch*> scratch;  // what the current operator has carved from them
    h2o::Arena shared;
};

namespace h2o {

inline h2o_cpu* cpu_of(const Call& call) {
    return static_cast<h2o_cpu*>(call.context);
}

// What carve(carver) returns, from memory that all threads share. Called twice: first with a carver that
// measures.
template <class Carve>
auto carve_shared(h2o_cpu* context, Carve carve) {
    Carver sizes(nullptr);
    carve(sizes);
    Carver carver(context->shared.at_least(sizes.used()));
    return carve(carver);
}
// A function of the thread that returns the same from the thread's own memory, anew with every call.
template <class Carve>
auto carve_own(h2o_cpu* context, Carve carve) {
    Carver sizes(nullptr);
    carve(sizes);
    for (Arena& arena : context->arenas) arena.at_least(sizes.used());
    return [context, carve](int thread) {
        Carver carver(context->arenas[static_cast<size_t>(thread)].at_least(0));
        return carve(carver);
    };
}

h2o_status check_shape(const h2o_shape* shape);
// For operators in which a score head must have one key/value head, or be a query head.
h2o_status check_heads(const h2o_shape* shape);
// For operators that also need values of the keys' size.
h2o_status check_alike(const h2o_shape* shape);

inline int64_t value_size(const h2o_shape& shape) {
    return shape.value_size == 0 ? shape.head_size : shape.value_size;
}
// Heads with their own rows and keys: score heads, or the key/value heads that a score head spans.
inline int64_t own_heads(const h2o_shape& shape) {
    return shape.score_heads > shape.kv_heads ? shape.score_heads : shape.kv_heads;
}

// Whether every entry of memory is a row of a cache of cap rows.
bool in_range(const int32_t* memory, int64_t count, int64_t cap);

inline int64_t element_size(h2o_dtype dtype) {
    return dtype == H2O_I8 ? 1 : dtype == H2O_F16 ? 2 : 4;
}

// Runs an operator's body with exclusive use of the context; exceptions become a status.
template <class Body>
h2o_status guarded(h2o_cpu* context, Body&& body) noexcept {
    try {
        std::lock_guard<std::mutex> hold(context->one_call);
        body();
        return H2O_OK;
    } catch (...) {  // only allocation throws
        return H2O_OUT_OF_WORKSPACE;
    }
}

}  // namespace h2o
