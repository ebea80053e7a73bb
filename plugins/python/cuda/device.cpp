// Memory, streams, events and graphs of h2o_plugins._cuda. Calls that may wait release the GIL.
#include "device.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace h2o::python {

namespace {

void* pointer(Address address) {
    return reinterpret_cast<void*>(address);
}

// Like `check`, for allocations: out of memory becomes Python's MemoryError.
void check_allocation(cudaError_t error, const char* call, size_t nbytes) {
    if (error != cudaErrorMemoryAllocation) return check(error, call);
    (void)cudaGetLastError();
    PyErr_Format(PyExc_MemoryError, "%s: %zu bytes are not free", call, nbytes);
    throw nb::python_error();
}

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    (void)cudaGetLastError();
    return 0;
}

cudaDeviceProp properties() {
    int device = 0;
    cudaDeviceProp found = {};
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaGetDeviceProperties(&found, device), "cudaGetDeviceProperties");
    return found;
}

std::string device_name() {
    return properties().name;
}

bool shares_host_memory() {
    return properties().integrated != 0;
}

std::pair<size_t, size_t> memory_info() {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {free, total};
}

class Memory : Owner {
  public:
    explicit Memory(size_t nbytes) : nbytes_(nbytes) {
        check_allocation(cudaMalloc(&data_, nbytes), "cudaMalloc", nbytes);
    }
    ~Memory() { cudaFree(data_); }
    Address address() const { return reinterpret_cast<Address>(data_); }
    size_t nbytes() const { return nbytes_; }

  private:
    void* data_ = nullptr;
    size_t nbytes_;
};

class PinnedMemory : Owner {
  public:
    explicit PinnedMemory(size_t nbytes) : nbytes_(nbytes) {
        check_allocation(cudaMallocHost(&data_, nbytes), "cudaMallocHost", nbytes);
    }
    ~PinnedMemory() { cudaFreeHost(data_); }
    uint8_t* data() const { return static_cast<uint8_t*>(data_); }
    size_t nbytes() const { return nbytes_; }

  private:
    void* data_ = nullptr;
    size_t nbytes_;
};

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes array_of(nb::handle self) {
    const PinnedMemory& memory = nb::cast<const PinnedMemory&>(self);
    return Bytes(memory.data(), {memory.nbytes()}, self);
}

}  // namespace

void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // leave no sticky error for the next caller
    throw CudaError(std::string(call) + ": " + cudaGetErrorString(error));
}

class Event : Owner {
  public:
    explicit Event(bool timing) {
        check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
    }
    ~Event() { cudaEventDestroy(event_); }
    cudaEvent_t get() const { return event_; }
    void record(const Stream& stream) { check(cudaEventRecord(event_, stream.get()), "cudaEventRecord"); }
    void synchronize() const {
        const nb::gil_scoped_release release;
        check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    }
    float milliseconds_since(const Event& start) const {
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
        return milliseconds;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

class Graph : Owner {
  public:
    explicit Graph(cudaGraph_t graph) {
        check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    }
    ~Graph() { cudaGraphExecDestroy(executable_); }
    void launch(const Stream& stream) const {
        check(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch");
    }

  private:
    cudaGraphExec_t executable_ = nullptr;
};

Stream::Stream(bool urgent) {
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least),
          "cudaStreamCreateWithPriority");
}
Stream::~Stream() {
    cudaStreamDestroy(stream_);
}
void Stream::synchronize() const {
    const nb::gil_scoped_release release;
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}
void Stream::wait(const Event& event) {
    check(cudaStreamWaitEvent(stream_, event.get(), 0), "cudaStreamWaitEvent");
}
void Stream::copy(void* target, const void* source, size_t nbytes, cudaMemcpyKind kind) {
    const nb::gil_scoped_release release;  // copies from or to pageable memory wait
    check(cudaMemcpyAsync(target, source, nbytes, kind, stream_), "cudaMemcpyAsync");
}
void Stream::upload(const Source& source, Address target) {
    copy(pointer(target), source.data(), source.nbytes(), cudaMemcpyHostToDevice);
}
void Stream::download(Address source, const Target& target) {
    copy(target.data(), pointer(source), target.nbytes(), cudaMemcpyDeviceToHost);
}
void Stream::copy(Address source, Address target, size_t nbytes) {
    copy(pointer(target), pointer(source), nbytes, cudaMemcpyDeviceToDevice);
}
void Stream::clear(Address target, size_t nbytes) {
    check(cudaMemsetAsync(pointer(target), 0, nbytes, stream_), "cudaMemsetAsync");
}
void Stream::write_integers(Address target, const std::vector<int64_t>& values) {
    check(h2o_cuda_write_integers(stream_, static_cast<int32_t>(values.size()), values.data(),
                                  static_cast<int64_t*>(pointer(target))),
          "write_integers");
}
void Stream::begin_capture() {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}
Graph* Stream::end_capture() {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph, cudaGraphDestroy);
    return new Graph(graph);
}

void bind_device(nb::module_& module) {
    module.def("device_count", &device_count, "NVIDIA GPUs that this process can use; 0 without a driver.");
    module.def("device_name", &device_name);
    module.def("shares_host_memory", &shares_host_memory, "Whether the GPU's memory is the host's.");
    module.def("memory_info", &memory_info, "Bytes of the GPU's memory that are free, and all of them.");
    nb::class_<Memory>(
        module, "Memory",
        "Bytes on the GPU, given back with the object. Raises MemoryError when there are not as many.")
        .def(nb::init<size_t>(), "nbytes"_a)
        .def_prop_ro("address", &Memory::address)
        .def_prop_ro("nbytes", &Memory::nbytes);
    nb::class_<PinnedMemory>(module, "PinnedMemory",
                             "Bytes on the host that the GPU copies from and to without a detour.")
        .def(nb::init<size_t>(), "nbytes"_a)
        .def("array", &array_of, "All of it; the array keeps it alive.");
    nb::class_<Event>(module, "Event")
        .def(nb::init<bool>(), "timing"_a = false)
        .def("record", &Event::record, "stream"_a)
        .def("synchronize", &Event::synchronize,
             "Wait until what was before it is done, without holding the interpreter lock.")
        .def("milliseconds_since", &Event::milliseconds_since, "start"_a, "Both with timing, and both done.");
    nb::class_<Graph>(module, "Graph").def("launch", &Graph::launch, "stream"_a);
    nb::class_<Stream>(
        module, "Stream",
        "Does not wait for the legacy default stream. The work of an urgent one goes before that of others.")
        .def(nb::init<bool>(), "urgent"_a = false)
        .def_prop_ro(
            "handle", [](const Stream& self) { return reinterpret_cast<Address>(self.get()); },
            "A cudaStream_t.")
        .def("synchronize", &Stream::synchronize,
             "Wait until all of it is done, without holding the interpreter lock.")
        .def("wait", &Stream::wait, "event"_a,
             "What is enqueued from now on comes after what the event was last recorded for, if anything.")
        .def("upload", &Stream::upload, "source"_a.noconvert(), "target"_a,
             "C-contiguous host array to device. From pinned memory it is read later: leave that alone until "
             "then.")
        .def("download", &Stream::download, "source"_a, "target"_a.noconvert(),
             "Device to C-contiguous host array, which holds it after a `synchronize`.")
        .def("copy", nb::overload_cast<Address, Address, size_t>(&Stream::copy), "source"_a, "target"_a,
             "nbytes"_a)
        .def("clear", &Stream::clear, "target"_a, "nbytes"_a, "All bits 0.")
        .def("write_integers", &Stream::write_integers, "target"_a, "values"_a,
             "At most 8 int64, which travel as arguments of a kernel: no host memory is read later.")
        .def("begin_capture", &Stream::begin_capture,
             "What is enqueued from now on is recorded instead of run; in \"thread local\" mode.")
        .def("end_capture", &Stream::end_capture, nb::rv_policy::take_ownership,
             "CudaError if something that may not be captured was tried; recording has ended all the same.");
}

}  // namespace h2o::python
