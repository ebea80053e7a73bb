#include "kernels.h"

#include <nanobind/stl/pair.h>

#include <string>
#include <utility>

namespace h2o::python {
namespace {

const Array& array_of(nb::handle value, const char* name) {
    const Array* array = nullptr;
    if (nb::try_cast(value, array) && array != nullptr) return *array;
    throw nb::type_error((std::string(name) + " must be an Array").c_str());
}

template <class T>
T* at(nb::handle array, const char* name) {
    return array.is_none() ? nullptr : reinterpret_cast<T*>(array_of(array, name).address());
}

h2o_tensor tensor_of(nb::handle array, const char* name) {
    return array_of(array, name).tensor(name);
}

// Scalars that stand for tensors: kernels read them on the device, and some also on the host.
class Integers {
  public:
    explicit Integers(int64_t* device) : device_(device) {}

    bool take(nb::handle value, h2o_tensor& tensor) {
        const bool pair = PyTuple_CheckExact(value.ptr());
        if (!pair && !PyLong_CheckExact(value.ptr())) return false;
        const int count = pair ? static_cast<int>(nb::len(value)) : 1;
        if (count_ + count > H2O_CUDA_MAX_INTEGERS) throw nb::value_error("too many numbers");
        tensor = {device_ + count_, host_ + count_, H2O_I64, pair, {count}};
        for (int i = 0; i < count; ++i)
            host_[count_++] = nb::cast<int64_t>(pair ? nb::object(value[i]) : nb::borrow(value));
        return true;
    }

    h2o_status write(cudaStream_t stream) const {
        return count_ == 0 ? H2O_OK : h2o_cuda_write_integers(stream, count_, host_, device_);
    }

  private:
    int64_t* device_;
    int64_t host_[H2O_CUDA_MAX_INTEGERS];
    int count_ = 0;
};

}  // namespace

void check(h2o_status status, const char* call) {
    const std::string name = call;
    switch (status) {
        case H2O_OK:
            return;
        case H2O_CUDA_ERROR:
            throw CudaError(name + ": " + h2o_cuda_last_error());
        case H2O_UNSUPPORTED:
            throw nb::value_error((name +
                                   ": no kernel for these head sizes or score heads, for pages or what rows "
                                   "are stored as, or for so many tokens")
                                      .c_str());
        case H2O_OUT_OF_WORKSPACE:
            throw nb::value_error((name + ": the workspace is too small").c_str());
        case H2O_BAD_ARGUMENT:
            break;
    }
    throw nb::value_error((name + ": an argument is out of range, or a null pointer").c_str());
}

KV::KV(nb::handle k, nb::handle v, nb::handle length, nb::handle pages, int32_t page_rows, nb::handle scales)
    : k_(tensor_of(k, "k_cache")), v_(tensor_of(v, "v_cache")), length_(nb::borrow(length)) {
    if (k_.dtype != v_.dtype) throw nb::value_error("k_cache and v_cache must have the same dtype");
    if ((k_.dtype == H2O_I8) == scales.is_none())
        throw nb::value_error("a cache of integers has scales, and no other has");
    kv_.k = k_.data;
    kv_.v = v_.data;
    kv_.rows = kv_.pool_rows = k_.sizes[0];
    kv_.pages = at<int32_t>(pages, "pages");
    kv_.page_rows = page_rows;
    kv_.dtype = k_.dtype;
    if (scales.is_none()) return;
    kv_.k_scales = at<float>(scales[0], "k_scales");
    kv_.v_scales = at<float>(scales[1], "v_scales");
}

Kernels::Kernels(const h2o_shape& shape, Address counters, Address integers)
    : shape_(shape),
      counters_(reinterpret_cast<uint32_t*>(counters)),
      integers_(reinterpret_cast<int64_t*>(integers)) {
    if (h2o_cuda_check_shape(&shape_) != H2O_OK)
        throw nb::value_error(
            "Kernels: query_heads must be a multiple of kv_heads, scale above 0, head_size at most 576 "
            "and "
            "value_size 512, and both whole pieces of 16 bytes");
}

void Kernels::run(const Stream& stream, nb::str name, const KV* kv, nb::dict given,
                  nb::callable reserve) const {
    const Known& op = operators_[name];
    Arguments arguments;
    arguments.shape = shape_;
    Integers integers(integers_);
    size_t used = 0;
    for (int i = 0; i < op.spec->tensors; ++i) {
        const TensorSpec& spec = op.spec->tensor[i];
        const size_t index = static_cast<size_t>(i);
        h2o_tensor& tensor = arguments.tensors[index];
        if (spec.part != Part::kNone && kv == nullptr)
            throw nb::value_error((std::string(op.spec->method) + ": kv is missing").c_str());
        tensor.rank = -1;
        if (spec.part == Part::kKeys || spec.part == Part::kValues) {
            tensor = spec.part == Part::kKeys ? kv->keys() : kv->values();
            continue;
        }
        const nb::handle value =
            spec.part == Part::kLength ? nb::handle(kv->length()) : argument(given, op.tensors[index], used);
        if (!value.is_valid()) continue;
        if (spec.type == Type::kInt64 && integers.take(value, tensor)) continue;
        tensor = tensor_of(value, spec.name);
    }
    const float* sinks = nullptr;
    if (op.spec->sinks) {
        const nb::handle value = argument(given, nb::str("sinks"), used);
        if (value.is_valid()) sinks = at<float>(value, "sinks");
    }
    place_outputs(op, arguments);
    read_attributes(op, given, arguments, used);
    expect_all_used(op, given, used);
    h2o_call call = resolved(op, arguments, kv == nullptr ? nullptr : kv->get());
    call.context = stream.get();
    call.counters = counters_;
    call.sinks = sinks;
    if (const size_t bytes = op.kernel->workspace(&call); bytes > 0) {
        const auto [address, size] = nb::cast<std::pair<Address, size_t>>(reserve(bytes));
        call.workspace = reinterpret_cast<void*>(address);
        call.workspace_bytes = size;
    }
    check(integers.write(stream.get()), op.spec->method);
    check(op.kernel->run(&call), op.spec->method);
}

void bind_kernels(nb::module_& module) {
    nb::class_<KV>(module, "KV",
                   "One layer's cache, as h2o_runtime's KV has it. ValueError: arrays that do not agree.")
        .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, int32_t, nb::handle>(), "k"_a, "v"_a,
             "length"_a, "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none());
    nb::class_<Kernels>(module, "Kernels",
                        "One model shape's operators. `counters` [16, query_heads] are uint32 zeros and "
                        "`integers` [8] int64 on the "
                        "device, for one stream.\n\n"
                        "ValueError: an argument that the kernels refuse; CudaError: a launch that failed.")
        .def(
            "__init__",
            [](Kernels* self, int32_t query_heads, int32_t kv_heads, int32_t head_size, float scale,
               bool half, int32_t value_size, int32_t window, float softcap, Address counters,
               Address integers) {
                const int32_t values = value_size > 0 ? value_size : head_size;
                const h2o_dtype dtype = half ? H2O_F16 : H2O_F32;
                new (self) Kernels(
                    {query_heads, kv_heads, kv_heads, head_size, scale, dtype, values, window, softcap},
                    counters, integers);
            },
            nb::kw_only(), "query_heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a,
            "value_size"_a = 0, "window"_a = 0, "softcap"_a = 0.f, "counters"_a, "integers"_a)
        .def("run", &Kernels::run, "stream"_a, "operator"_a, "kv"_a.none(), "arguments"_a, "reserve"_a,
             "Enqueues an operator of the table by its name. The arguments are its tensors, without those of "
             "kv, "
             "and its attributes, by their names. reserve(bytes) gives a workspace: its address and its "
             "size.");
}

}  // namespace h2o::python
