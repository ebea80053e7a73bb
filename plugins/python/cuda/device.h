// The GPU resources of the Python module _cuda: each object owns one CUDA runtime object.
#pragma once

#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "h2o/cuda.h"

namespace h2o::python {

using Address = uintptr_t;

struct CudaError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Both throw unless the call succeeded.
void check(cudaError_t error, const char* call);
void check(h2o_status status, const char* call);

// Objects are neither copied nor moved: Python holds them by reference.
class Owner {
  public:
    Owner() = default;
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
};

class Event;
class Graph;

class Stream : Owner {
  public:
    using Source = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
    using Target = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;

    explicit Stream(bool urgent);
    ~Stream();
    cudaStream_t get() const { return stream_; }
    void synchronize() const;
    void wait(const Event& event);
    void upload(const Source& source, Address target);
    void download(Address source, const Target& target);
    void copy(Address source, Address target, size_t nbytes);
    void clear(Address target, size_t nbytes);
    void write_integers(Address target, const std::vector<int64_t>& values);
    void begin_capture();
    Graph* end_capture();

  private:
    void copy(void* target, const void* source, size_t nbytes, cudaMemcpyKind kind);

    cudaStream_t stream_ = nullptr;
};

void bind_device(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);

}  // namespace h2o::python
