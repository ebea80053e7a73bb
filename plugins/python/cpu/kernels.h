// One model shape's CPU kernels for Python. Checks what raw pointers cannot (dtypes, layouts, sizes that must
// agree) and says which argument is wrong; the kernels check the rest.
//
// In a namespace of its own: nanobind tells classes apart by their C++ names, across modules.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "arrays.h"
#include "h2o/cpu.h"

namespace h2o::python::cpu {

using namespace nb::literals;

// Throws unless the call succeeded.
void check(h2o_status status, const char* call);

class Kernels {
  public:
    Kernels(int threads, const std::optional<std::string>& isa, int64_t query_heads, int64_t kv_heads,
            int64_t head_size, double scale, bool half, int64_t value_size);
    ~Kernels() { h2o_cpu_destroy(context_); }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    int threads() const { return h2o_cpu_threads(context_); }
    std::string isa() const { return h2o_cpu_isa(context_); }
    size_t scratch_bytes() const { return h2o_cpu_scratch_bytes(context_); }

    const h2o_shape shape;

    // How many there are.
    template <class Array>
    int64_t expect_landmarks(const Array& k_mean, const Array& v_mean) const {
        expect(k_mean, "k_mean", {-1, shape.kv_heads, shape.head_size});
        expect(v_mean, "v_mean", {size_of(k_mean, 0), shape.kv_heads, shape.head_size});
        return size_of(k_mean, 0);
    }

    template <class Array>
    void expect_tensor(const Array& array, const char* name, std::initializer_list<int64_t> sizes) const {
        const bool half = shape.dtype == H2O_F16;
        const nb::dlpack::dtype type = array.dtype();
        if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Float) ||
            type.bits != (half ? 16 : 32)) {
            throw nb::value_error((std::string(name) + " must be " + (half ? "float16" : "float32")).c_str());
        }
        expect(array, name, sizes);
    }

    template <class Array>
    void expect_rows(const Array& array, const char* name, int64_t n, int64_t heads) const {
        expect_tensor(array, name, {n, heads, shape.head_size});
    }

    // As the model's numbers are stored, or shorter.
    template <class Array>
    h2o_dtype stored_as(const Array& array, const char* name) const {
        const nb::dlpack::dtype type = array.dtype();
        const bool real = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
        if (real && type.bits == 32 && shape.dtype == H2O_F32) return H2O_F32;
        if (real && type.bits == 16) return H2O_F16;
        if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && type.bits == 8) return H2O_I8;
        throw nb::value_error((std::string(name) + " must be " +
                               (shape.dtype == H2O_F16 ? "float16 or int8" : "float32, float16 or int8"))
                                  .c_str());
    }

    // `v` is null where keys alone are read.
    template <class Array, class ScalePair>
    h2o_kv cache_of(const Array& k, const Array* v, const Pages& pages, int32_t page_rows,
                    const ScalePair& scales) const {
        h2o_kv kv{};
        kv.dtype = stored_as(k, "k_cache");
        const int64_t rows = size_of(k, 0);
        expect(k, "k_cache", {-1, shape.kv_heads, shape.head_size});
        if (v != nullptr) {
            const bool in_keys = same(*v, k);
            expect(*v, "v_cache", {rows, shape.kv_heads, in_keys ? shape.head_size : shape.value_size});
            if (stored_as(*v, "v_cache") != kv.dtype)
                throw nb::value_error("k_cache and v_cache must have the same dtype");
        }
        if ((kv.dtype == H2O_I8) != scales.has_value())
            throw nb::value_error("a cache of integers has scales, and no other has");
        kv.k = const_cast<void*>(static_cast<const void*>(k.data()));
        kv.v = v ? const_cast<void*>(static_cast<const void*>(v->data())) : nullptr;
        kv.rows = rows;
        if (scales) {
            expect(scales->first, "scales of k_cache", {rows, shape.kv_heads});
            expect(scales->second, "scales of v_cache", {rows, shape.kv_heads});
            kv.k_scales = const_cast<float*>(scales->first.data());
            kv.v_scales = const_cast<float*>(scales->second.data());
        }
        if (pages) {
            expect(*pages, "pages", {-1});
            kv.pages = pages->data();
            kv.page_rows = page_rows;
            kv.rows = size_of(*pages, 0) * page_rows;
            kv.pool_rows = rows;
        }
        return kv;
    }

    // Those in the keys have the size of these.
    template <class Array>
    void expect_values(const Array& array, const char* name, int64_t n, int64_t heads, bool in_keys) const {
        expect_tensor(array, name, {n, heads, in_keys ? shape.head_size : shape.value_size});
    }

    template <class Array>
    void expect_outputs(const Array& array, const char* name, int64_t n) const {
        expect_tensor(array, name, {n, shape.query_heads, shape.value_size});
    }

    void expect_state(int64_t n, const Output& o, const Float32& m, const Float32& l) const {
        expect_outputs(o, "o", n);
        expect(m, "m", {n, shape.query_heads});
        expect(l, "l", {n, shape.query_heads});
    }

    h2o_shape scored(int64_t heads) const {
        h2o_shape of_scores = shape;
        of_scores.score_heads = heads;
        return of_scores;
    }

    // Calls with the context, while other Python threads run; throws unless that succeeds.
    template <class Call>
    void run(const char* name, Call&& call) {
        h2o_status status;
        {
            nb::gil_scoped_release release;
            status = call(context_);
        }
        check(status, name);
    }

  private:
    h2o_cpu* context_ = nullptr;
};

void bind_kernels(nb::module_& module);

// Each adds its operators to the class.
void bind_memory(nb::class_<Kernels>& kernels);
void bind_rows(nb::class_<Kernels>& kernels);
void bind_selection(nb::class_<Kernels>& kernels);
void bind_cached(nb::class_<Kernels>& kernels);
void bind_landmarks(nb::class_<Kernels>& kernels);
void bind_pages(nb::class_<Kernels>& kernels);
void bind_lines(nb::class_<Kernels>& kernels);

}  // namespace h2o::python::cpu
