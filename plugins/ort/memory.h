// Scratch memory of a run: ONNX Runtime allocates it as an output that nobody reads, so its arena has it.
#pragma once

#include "matrices.h"

namespace h2o::ort {

// Memory that grows with each request, in whole cache lines; with `base` null it only measures.
class Memory {
  public:
    explicit Memory(void* base) : base_(static_cast<char*>(base)) {}
    void* take(size_t bytes) {
        char* const at = base_ == nullptr ? nullptr : base_ + used_;
        used_ += pieces_of(static_cast<int64_t>(bytes), 64) * 64;
        return at;
    }
    template <class T>
    T* take(int64_t count) {
        return static_cast<T*>(take(static_cast<size_t>(count) * sizeof(T)));
    }
    int64_t used() const { return used_; }

  private:
    char* base_;
    int64_t used_ = 0;
};

// What lay_out(memory) takes, as output `index` of a node. It is called twice: first to measure.
template <class LayOut>
Status* scratch(const Interface& ort, KernelContext* context, size_t index, LayOut lay_out) {
    Memory measured(nullptr);
    lay_out(&measured);
    void* at = nullptr;
    const int64_t bytes = measured.used();
    H2O_RETURN_IF(output(ort, context, index, &bytes, 1, &at));
    Memory memory(at);
    lay_out(&memory);
    return nullptr;
}

}  // namespace h2o::ort
