#include "kernels.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace h2o::python::cpu {
namespace {

// A number may stand for an array of one element, and a pair for an array of two: `numbers` stores them
// during the call.
struct Numbers {
    int64_t of[kMostTensors][2];

    bool take(nb::handle value, size_t index, h2o_tensor& tensor) {
        if (PyLong_CheckExact(value.ptr())) {
            of[index][0] = nb::cast<int64_t>(value);
            tensor.rank = 0;
        } else if (PyTuple_CheckExact(value.ptr()) && PyTuple_Size(value.ptr()) == 2) {
            for (size_t i = 0; i < 2; ++i) of[index][i] = nb::cast<int64_t>(value[i]);
            tensor.rank = 1;
            tensor.sizes[0] = 2;
        } else {
            return false;
        }
        tensor.data = of[index];
        tensor.dtype = H2O_I64;
        return true;
    }
};

// Whether an output that is not given is written to this input's memory.
bool holds_output(const Known& op, const nb::dict& given, int input) {
    for (int i = op.spec->inputs; i < op.spec->tensors; ++i) {
        const nb::object& name = op.tensors[static_cast<size_t>(i)];
        if (op.spec->tensor[i].in_place == input && PyDict_GetItem(given.ptr(), name.ptr()) == nullptr)
            return true;
    }
    return false;
}

void expect(const h2o_tensor& tensor, const char* name, int64_t rows, int64_t heads) {
    if (tensor.dtype == H2O_F32 && tensor.rank == 2 && tensor.sizes[0] == rows && tensor.sizes[1] == heads)
        return;
    throw nb::value_error((std::string(name) + " must be float32 and have shape (" + std::to_string(rows) +
                           ", " + std::to_string(heads) + ")")
                              .c_str());
}

}  // namespace

void check(h2o_status status, const char* what) {
    if (status == H2O_OK) return;
    const std::string name = what;
    if (status == H2O_OUT_OF_WORKSPACE) throw std::bad_alloc();
    if (status == H2O_UNSUPPORTED) {
        throw nb::value_error((name + ": not supported by this build; head_size must be a multiple of 8 and "
                                      "value_size one of 4, equal for "
                                      "landmarks, pages and lines; score_heads may not be less than kv_heads "
                                      "there, nor in votes; a page "
                                      "must have a power of two of rows, at least 4")
                                  .c_str());
    }
    throw nb::value_error((name +
                           ": an argument is out of range; sizes must agree with each other, and memory "
                           "must index rows of the cache")
                              .c_str());
}

KV::KV(nb::handle k, nb::handle v, int64_t length, nb::handle pages, int32_t page_rows, nb::handle scales)
    : k_(k, "k_cache", Access::kWriteIfAllowed), v_(v, "v_cache", Access::kWriteIfAllowed), length_(length) {
    const h2o_tensor keys = k_.tensor(), values = v_.tensor();
    if (keys.rank != 3 || values.rank != 3 || keys.sizes[0] != values.sizes[0])
        throw nb::value_error("k_cache and v_cache must have shapes (rows, Hkv, d) and (rows, Hkv, dv)");
    if (keys.dtype != values.dtype) throw nb::value_error("k_cache and v_cache must have the same dtype");
    kv_.k = k_.data();
    kv_.v = v_.data();
    kv_.rows = keys.sizes[0];
    kv_.dtype = keys.dtype;
    read_scales(scales, keys);
    if (pages.is_none()) return;
    pages_ = Buffer(pages, "pages", Access::kRead);
    const h2o_tensor list = pages_.tensor();
    if (list.dtype != H2O_I32 || list.rank != 1)
        throw nb::value_error("pages must be int32 and have one dimension");
    kv_.pages = static_cast<const int32_t*>(pages_.data());
    kv_.page_rows = page_rows;
    kv_.pool_rows = kv_.rows;
    kv_.rows = list.sizes[0] * page_rows;
}

void KV::read_scales(nb::handle scales, const h2o_tensor& k) {
    if ((k.dtype == H2O_I8) == scales.is_none())
        throw nb::value_error("a cache of integers has scales, and no other has");
    if (scales.is_none()) return;
    k_scales_ = Buffer(scales[0], "scales of k_cache", Access::kWriteIfAllowed);
    v_scales_ = Buffer(scales[1], "scales of v_cache", Access::kWriteIfAllowed);
    expect(k_scales_.tensor(), "scales of k_cache", k.sizes[0], k.sizes[1]);
    expect(v_scales_.tensor(), "scales of v_cache", k.sizes[0], k.sizes[1]);
    kv_.k_scales = static_cast<float*>(k_scales_.data());
    kv_.v_scales = static_cast<float*>(v_scales_.data());
}

h2o_tensor KV::tensor(Part part) const {
    h2o_tensor made{};
    if (part == Part::kLength) {
        made.data = const_cast<int64_t*>(&length_);
        made.dtype = H2O_I64;
        return made;
    }
    made = part == Part::kKeys ? k_.tensor() : v_.tensor();
    made.sizes[0] = kv_.rows;
    return made;
}

Kernels::Kernels(int threads, const std::optional<std::string>& isa, h2o_precision precision,
                 const h2o_shape& shape)
    : shape_(shape) {
    check(h2o_cpu_create(threads, isa ? isa->c_str() : nullptr, precision, &context_), "Kernels");
}

void Kernels::run(nb::str name, const KV* kv, nb::dict given) {
    const Known& op = operators_[name];
    Arguments arguments;
    arguments.shape = shape_;
    Numbers numbers;
    Buffer buffers[kMostTensors];
    size_t used = 0;
    for (int i = 0; i < op.spec->tensors; ++i) {
        const TensorSpec& spec = op.spec->tensor[i];
        const size_t at = static_cast<size_t>(i);
        h2o_tensor& tensor = arguments.tensors[at];
        tensor.rank = -1;
        if (spec.part != Part::kNone) {
            if (kv == nullptr)
                throw nb::value_error((std::string(op.spec->method) + ": kv is missing").c_str());
            if (spec.updated && !kv->writable())
                throw nb::value_error((std::string(spec.name) + " may not be written to").c_str());
            tensor = kv->tensor(spec.part);
            continue;
        }
        const nb::handle value = argument(given, op.tensors[at], used);
        if (!value.is_valid()) continue;
        if (spec.type == Type::kInt64 && numbers.take(value, at, tensor)) continue;
        const bool write = i >= op.spec->inputs || spec.updated || holds_output(op, given, i);
        buffers[at] = Buffer(value, spec.name, write ? Access::kWrite : Access::kRead);
        tensor = buffers[at].tensor();
    }
    place_outputs(op, arguments);
    read_attributes(op, given, arguments, used);
    expect_all_used(op, given, used);
    h2o_call call = resolved(op, arguments, kv == nullptr ? nullptr : kv->get());
    call.context = context_;
    h2o_status status;
    {
        nb::gil_scoped_release release;
        status = op.kernel->run(&call);
    }
    check(status, op.spec->method);
}

// By h2o_precision.
constexpr const char* kPrecisions[] = {"float32", "bfloat16", "int16"};

h2o_precision precision_of(const std::string& name) {
    const auto found = std::find(std::begin(kPrecisions), std::end(kPrecisions), name);
    if (found == std::end(kPrecisions)) throw nb::value_error(("no precision is named " + name).c_str());
    return static_cast<h2o_precision>(found - std::begin(kPrecisions));
}

void bind_kernels(nb::module_& module) {
    nb::class_<KV>(module, "KV",
                   "One layer's cache, as h2o_runtime's KV has it. ValueError: arrays that do not agree.")
        .def(nb::init<nb::handle, nb::handle, int64_t, nb::handle, int32_t, nb::handle>(), "k"_a, "v"_a,
             "length"_a, "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none());
    nb::class_<Kernels>(
        module, "Kernels",
        "One model shape's operators and the threads that run them. threads <= 0: all that the process may "
        "use.\n\nValueError: an argument that the kernels refuse; MemoryError: no room for their scratch.")
        .def(
            "__init__",
            [](Kernels* self, int threads, const std::optional<std::string>& isa, int32_t query_heads,
               int32_t kv_heads, int32_t head_size, float scale, bool half, int32_t value_size,
               int32_t window, float softcap, const std::string& precision) {
                const h2o_dtype dtype = half ? H2O_F16 : H2O_F32;
                const int32_t values = value_size > 0 ? value_size : head_size;
                new (self) Kernels(threads, isa, precision_of(precision),
                                   h2o_shape{query_heads, kv_heads, kv_heads, head_size, scale, dtype, values,
                                             window, softcap});
            },
            "threads"_a, "isa"_a.none(), "query_heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a,
            "value_size"_a = 0, "window"_a = 0, "softcap"_a = 0, "precision"_a = "float32")
        .def_prop_ro("threads", &Kernels::threads)
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("scratch_bytes", &Kernels::scratch_bytes)
        .def_static(
            "multiplies",
            [](const std::string& precision, const std::optional<std::string>& isa) {
                return h2o_cpu_supports(isa ? isa->c_str() : nullptr, precision_of(precision));
            },
            "precision"_a, "isa"_a = nb::none(),
            "Whether this machine has products of that precision, with that instruction set.")
        .def_static(
            "fastest_precision", [] { return kPrecisions[h2o_cpu_fastest_precision()]; },
            "That of this machine's fastest attention.")
        .def("run", &Kernels::run, "operator"_a, "kv"_a.none(), "arguments"_a,
             "Runs an operator of the table by its name. The arguments are its tensors, without those of kv, "
             "and its attributes, by their names.");
}

}  // namespace h2o::python::cpu
