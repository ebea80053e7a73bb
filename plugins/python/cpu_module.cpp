// h2o_plugins._cpu: the C interface of the CPU kernels for NumPy arrays. Checks what raw pointers cannot
// (dtypes, layouts, sizes that must agree) and says which argument is wrong; the kernels check the rest.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <new>
#include <optional>
#include <string>
#include <utility>

#include "h2o/cpu.h"
#include "h2o/products.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Float32 = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using Float32In = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Int32 = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;
using Int32In = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Int64In = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
using Pages = std::optional<Int32In>;
using Scales = std::optional<std::pair<Float32In, Float32In>>;  // of keys, of values
using OwnScales = std::optional<std::pair<Float32, Float32>>;

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

// Throws unless the array has exactly these sizes; -1 stands for any.
template <class Array>
void expect(const Array& array, const char* name, std::initializer_list<int64_t> sizes) {
    bool good = array.ndim() == sizes.size();
    size_t axis = 0;
    for (int64_t size : sizes) {
        good = good && (size < 0 || static_cast<int64_t>(array.shape(axis)) == size);
        ++axis;
    }
    if (good) return;
    std::string wanted, got;
    for (int64_t size : sizes) wanted += (size < 0 ? std::string("any") : std::to_string(size)) + ", ";
    for (size_t i = 0; i < array.ndim(); ++i) got += std::to_string(array.shape(i)) + ", ";
    throw nb::value_error(
        (std::string(name) + " must have shape (" + wanted + ") but has (" + got + ")").c_str());
}

template <class Array>
int64_t size_of(const Array& array, size_t axis) {
    return axis < array.ndim() ? static_cast<int64_t>(array.shape(axis)) : -1;
}

// Values that are a part of the keys come as these.
template <class Array>
bool same(const Array& a, const Array& b) {
    return a.data() != nullptr && a.data() == b.data();
}

class Kernels {
  public:
    Kernels(int threads, std::optional<std::string> isa, int64_t query_heads, int64_t kv_heads,
            int64_t head_size, double scale, bool half, int64_t value_size)
        : shape_{query_heads,
                 kv_heads,
                 kv_heads,
                 head_size,
                 static_cast<float>(scale),
                 half ? H2O_F16 : H2O_F32,
                 value_size > 0 ? value_size : head_size} {
        check(h2o_cpu_create(threads, isa ? isa->c_str() : nullptr, &context_), "Kernels");
    }
    ~Kernels() { h2o_cpu_destroy(context_); }
    Kernels(const Kernels&) = delete;
    Kernels& operator=(const Kernels&) = delete;

    int threads() const { return h2o_cpu_threads(context_); }
    std::string isa() const { return h2o_cpu_isa(context_); }
    size_t scratch_bytes() const { return h2o_cpu_scratch_bytes(context_); }

    void chunked_intra_attention(Input q, Input k, Input v, int64_t chunk_size, Output o, Float32 m,
                                 Float32 l, std::optional<Float32> colsum) {
        const int64_t n = size_of(q, 0);
        expect_rows(q, "q", n, shape_.query_heads);
        expect_rows(k, "k", n, shape_.kv_heads);
        expect_values(v, "v", n, shape_.kv_heads, same(v, k));
        expect_state(n, o, m, l);
        const h2o_shape shape = scored(colsum ? size_of(*colsum, 1) : shape_.kv_heads);
        if (colsum) expect(*colsum, "colsum", {n, shape.score_heads});
        float* const sums = colsum ? colsum->data() : nullptr;
        run("chunked_intra_attention", [&] {
            return h2o_cpu_chunked_intra_attention(context_, &shape, n, chunk_size, q.data(), k.data(),
                                                   v.data(), o.data(), m.data(), l.data(), sums);
        });
    }

    void memory_fused_attention(Input q, Input k_cache, Input v_cache, Int32In memory, int64_t tile, Output o,
                                Float32 m, Float32 l, std::optional<Float32> colsum, const Pages& pages,
                                int32_t page_rows, const Scales& scales) {
        const int64_t n = size_of(q, 0), slots = size_of(memory, 2);
        expect_rows(q, "q", n, shape_.query_heads);
        expect_state(n, o, m, l);
        const h2o_shape shape = scored(size_of(memory, 1));
        const int64_t tiles = tile > 0 ? std::max<int64_t>((n + tile - 1) / tile, 1) : -1;
        expect(memory, "memory", {tiles, shape.score_heads, slots});
        if (colsum) expect(*colsum, "colsum", {shape.score_heads, slots});
        float* const sums = colsum ? colsum->data() : nullptr;
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("memory_fused_attention", [&] {
            return h2o_cpu_memory_fused_attention(context_, &shape, n, tile, slots, q.data(), &kv,
                                                  memory.data(), o.data(), m.data(), l.data(), sums);
        });
    }

    void memory_attention(Input q, Input k_mem, Input v_mem, Output o, Float32 m, Float32 l,
                          std::optional<Float32> colsum) {
        const int64_t n = size_of(q, 0), slots = size_of(k_mem, 1);
        const h2o_shape shape = scored(size_of(k_mem, 0));
        expect_rows(q, "q", n, shape_.query_heads);
        expect_tensor(k_mem, "k_mem", {shape.score_heads, slots, shape_.head_size});
        expect_tensor(v_mem, "v_mem", {shape.score_heads, slots, shape_.value_size});
        expect_state(n, o, m, l);
        if (colsum) expect(*colsum, "colsum", {shape.score_heads, slots});
        float* const sums = colsum ? colsum->data() : nullptr;
        run("memory_attention", [&] {
            return h2o_cpu_memory_attention(context_, &shape, n, slots, q.data(), k_mem.data(), v_mem.data(),
                                            o.data(), m.data(), l.data(), sums);
        });
    }

    void online_softmax_fusion(Input o_a, Float32In m_a, Float32In l_a, Input o_b, Float32In m_b,
                               Float32In l_b, Output o, Float32 m, Float32 l) {
        const int64_t n = size_of(o_a, 0);
        expect_outputs(o_a, "o_a", n);
        expect_outputs(o_b, "o_b", n);
        for (const Float32In* state : {&m_a, &l_a, &m_b, &l_b})
            expect(*state, "a state", {n, shape_.query_heads});
        expect_state(n, o, m, l);
        run("online_softmax_fusion", [&] {
            return h2o_cpu_online_softmax_fusion(context_, &shape_, n, o_a.data(), m_a.data(), l_a.data(),
                                                 o_b.data(), m_b.data(), l_b.data(), o.data(), m.data(),
                                                 l.data());
        });
    }

    void memory_gather(Input k_cache, Input v_cache, Int32In memory, Output k_mem, Output v_mem,
                       const Pages& pages, int32_t page_rows, const Scales& scales) {
        const int64_t slots = size_of(memory, 1);
        const h2o_shape shape = scored(size_of(memory, 0));
        expect(memory, "memory", {shape.score_heads, -1});
        expect_tensor(k_mem, "k_mem", {shape.score_heads, slots, shape_.head_size});
        expect_tensor(v_mem, "v_mem", {shape.score_heads, slots, shape_.value_size});
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("memory_gather", [&] {
            return h2o_cpu_memory_gather(context_, &shape, slots, &kv, memory.data(), k_mem.data(),
                                         v_mem.data());
        });
    }

    void cache_append(Input k, Input v, int64_t first, Output k_cache, Output v_cache, const Pages& pages,
                      int32_t page_rows, const OwnScales& scales) {
        const int64_t n = size_of(k, 0);
        expect_rows(k, "k", n, shape_.kv_heads);
        expect_values(v, "v", n, shape_.kv_heads, same(v_cache, k_cache));
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("cache_append",
            [&] { return h2o_cpu_cache_append(context_, &shape_, n, k.data(), v.data(), first, &kv); });
    }

    void candidate_score(Input q_window, Input k, Input k_cache, Int32In memory, Float32 score_mem,
                         Float32 score_chunk, const Pages& pages, int32_t page_rows, const Scales& scales) {
        const int64_t w = size_of(q_window, 0), n = size_of(k, 0), slots = size_of(memory, 1);
        const h2o_shape shape = scored(size_of(score_chunk, 1));
        expect_rows(q_window, "q_window", w, shape_.query_heads);
        expect_rows(k, "k", n, shape_.kv_heads);
        expect(memory, "memory", {shape.score_heads, -1});
        expect(score_mem, "score_mem", {shape.score_heads, slots});
        expect(score_chunk, "score_chunk", {n, shape.score_heads});
        const h2o_kv kv = cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
        run("candidate_score", [&] {
            return h2o_cpu_candidate_score(context_, &shape, w, n, slots, q_window.data(), k.data(), &kv,
                                           memory.data(), score_mem.data(), score_chunk.data());
        });
    }

    void memory_select(Float32In score, Int32In memory, int64_t start, int64_t stop, int64_t local,
                       int64_t sink, Int32 memory_next) {
        const int64_t heads = size_of(memory_next, 0), cap = size_of(score, 0), previous = size_of(memory, 1);
        expect(score, "score", {-1, heads});
        expect(memory, "memory", {heads, -1});
        expect(memory_next, "memory_next", {-1, -1});
        run("memory_select", [&] {
            return h2o_cpu_memory_select(context_, heads, cap, score.data(), previous, memory.data(), start,
                                         stop, local, size_of(memory_next, 1), sink, memory_next.data());
        });
    }

    void query_select(Input q, Input k_cache, Int32In candidates, Int64In past, int64_t tile, int64_t stride,
                      int64_t share, int64_t reach, int64_t local, int64_t sink, Int32 memory_next,
                      const Pages& pages, int32_t page_rows, const Scales& scales) {
        const h2o_shape shape = scored(size_of(memory_next, 1));
        const h2o_tiles tiles{size_of(q, 0),
                              tile,
                              stride,
                              share,
                              reach,
                              size_of(past, 0),
                              size_of(candidates, 0),
                              size_of(candidates, 2),
                              local,
                              size_of(memory_next, 2),
                              sink};
        expect_rows(q, "q", tiles.n, shape_.query_heads);
        expect(candidates, "candidates", {-1, shape.score_heads, -1});
        expect(past, "past", {-1});
        expect(memory_next, "memory_next", {tiles.tiles, -1, -1});
        const h2o_kv kv = cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
        run("query_select", [&] {
            return h2o_cpu_query_select(context_, &shape, &tiles, q.data(), &kv, candidates.data(),
                                        past.data(), memory_next.data());
        });
    }

    void cached_attention(Input q, Input k_cache, Input v_cache, int64_t length, Output o, const Pages& pages,
                          int32_t page_rows, const Scales& scales) {
        const int64_t n = size_of(q, 0);
        expect_rows(q, "q", n, shape_.query_heads);
        expect_outputs(o, "o", n);
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("cached_attention",
            [&] { return h2o_cpu_cached_attention(context_, &shape_, n, q.data(), &kv, length, o.data()); });
    }

    void scored_attention(Input q, Input k_cache, Input v_cache, int64_t length, Output o, Float32 seen,
                          const Pages& pages, int32_t page_rows, const Scales& scales) {
        expect_rows(q, "q", 1, shape_.query_heads);
        expect_outputs(o, "o", 1);
        expect(seen, "seen", {-1, shape_.kv_heads});
        if (size_of(seen, 0) < length)
            throw nb::value_error("seen must have a row for every row of the cache");
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("scored_attention", [&] {
            return h2o_cpu_scored_attention(context_, &shape_, q.data(), &kv, length, o.data(), seen.data());
        });
    }

    void landmark_update(Input k_cache, Input v_cache, Float32 k_mean, Float32 v_mean, int64_t start,
                         int64_t length, int64_t block_size, const Pages& pages, int32_t page_rows,
                         const Scales& scales) {
        const int64_t blocks = expect_landmarks(k_mean, v_mean);
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("landmark_update", [&] {
            return h2o_cpu_landmark_update(context_, &shape_, &kv, start, length, block_size, blocks,
                                           k_mean.data(), v_mean.data());
        });
    }

    void subquadratic_attention(Input q, Input k_cache, Input v_cache, Float32In k_mean, Float32In v_mean,
                                Int32In global_rows, int64_t length, int64_t window, int64_t block_size,
                                int64_t strides, int64_t count_bias, Output o, const Pages& pages,
                                int32_t page_rows, const Scales& scales) {
        const int64_t n = size_of(q, 0), blocks = expect_landmarks(k_mean, v_mean);
        expect_rows(q, "q", n, shape_.query_heads);
        expect(global_rows, "global_rows", {-1});
        expect_rows(o, "o", n, shape_.query_heads);
        if (block_size > 0 && blocks < length / block_size)
            throw nb::value_error("k_mean and v_mean must have a row for every complete block");
        const h2o_subquadratic pattern = h2o_subquadratic_of(window, block_size, strides, count_bias);
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("subquadratic_attention", [&] {
            return h2o_cpu_subquadratic_attention(context_, &shape_, &pattern, n, q.data(), &kv, length,
                                                  k_mean.data(), v_mean.data(), size_of(global_rows, 0),
                                                  global_rows.data(), o.data());
        });
    }

    void page_bounds(Input k_cache, Float32 k_min, Float32 k_max, int64_t start, int64_t length,
                     int64_t page_size, const Pages& pages, int32_t page_rows, const Scales& scales) {
        const int64_t count = expect_landmarks(k_min, k_max);
        const h2o_kv kv = cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
        run("page_bounds", [&] {
            return h2o_cpu_page_bounds(context_, &shape_, &kv, start, length, page_size, count, k_min.data(),
                                       k_max.data());
        });
    }

    void page_select(Input q, Float32In k_min, Float32In k_max, int64_t length, int64_t page_size,
                     Int32 page_list) {
        const h2o_shape shape = scored(size_of(page_list, 0));
        const int64_t count = expect_landmarks(k_min, k_max);
        expect_rows(q, "q", 1, shape.query_heads);
        expect(page_list, "page_list", {shape.score_heads, -1});
        run("page_select", [&] {
            return h2o_cpu_page_select(context_, &shape, q.data(), length, page_size, count, k_min.data(),
                                       k_max.data(), size_of(page_list, 1), page_list.data());
        });
    }

    void page_attention(Input q, Input k_cache, Input v_cache, Int32In page_list, int64_t length,
                        int64_t page_size, Output o, const Pages& pages, int32_t page_rows,
                        const Scales& scales) {
        const h2o_shape shape = scored(size_of(page_list, 0));
        expect_rows(q, "q", 1, shape.query_heads);
        expect(page_list, "page_list", {shape.score_heads, -1});
        expect_rows(o, "o", 1, shape.query_heads);
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("page_attention", [&] {
            return h2o_cpu_page_attention(context_, &shape, q.data(), &kv, length, page_size,
                                          size_of(page_list, 1), page_list.data(), o.data());
        });
    }

    void vertical_slash_select(Input q, Input k_cache, int64_t length, int64_t sink, int64_t near,
                               Int32 columns, Int32 distances, const Pages& pages, int32_t page_rows,
                               const Scales& scales) {
        const int64_t n = size_of(q, 0);
        expect_rows(q, "q", n, shape_.query_heads);
        expect(columns, "columns", {shape_.query_heads, -1});
        expect(distances, "distances", {shape_.query_heads, -1});
        const h2o_kv kv = cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
        run("vertical_slash_select", [&] {
            return h2o_cpu_vertical_slash_select(context_, &shape_, n, q.data(), &kv, length,
                                                 size_of(columns, 1), size_of(distances, 1), sink, near,
                                                 columns.data(), distances.data());
        });
    }

    void vertical_slash_attention(Input q, Input k_cache, Input v_cache, Int32In columns, Int32In distances,
                                  int64_t length, Output o, const Pages& pages, int32_t page_rows,
                                  const Scales& scales) {
        const int64_t n = size_of(q, 0);
        expect_rows(q, "q", n, shape_.query_heads);
        expect(columns, "columns", {shape_.query_heads, -1});
        expect(distances, "distances", {shape_.query_heads, -1});
        expect_rows(o, "o", n, shape_.query_heads);
        const h2o_kv kv = cache_of(k_cache, &v_cache, pages, page_rows, scales);
        run("vertical_slash_attention", [&] {
            return h2o_cpu_vertical_slash_attention(context_, &shape_, n, q.data(), &kv, length,
                                                    size_of(columns, 1), columns.data(),
                                                    size_of(distances, 1), distances.data(), o.data());
        });
    }

  private:
    // How many there are.
    template <class Array>
    int64_t expect_landmarks(const Array& k_mean, const Array& v_mean) const {
        expect(k_mean, "k_mean", {-1, shape_.kv_heads, shape_.head_size});
        expect(v_mean, "v_mean", {size_of(k_mean, 0), shape_.kv_heads, shape_.head_size});
        return size_of(k_mean, 0);
    }

    template <class Array>
    void expect_tensor(const Array& array, const char* name, std::initializer_list<int64_t> sizes) const {
        const bool half = shape_.dtype == H2O_F16;
        const nb::dlpack::dtype type = array.dtype();
        if (type.code != static_cast<uint8_t>(nb::dlpack::dtype_code::Float) ||
            type.bits != (half ? 16 : 32)) {
            throw nb::value_error((std::string(name) + " must be " + (half ? "float16" : "float32")).c_str());
        }
        expect(array, name, sizes);
    }

    template <class Array>
    void expect_rows(const Array& array, const char* name, int64_t n, int64_t heads) const {
        expect_tensor(array, name, {n, heads, shape_.head_size});
    }

    // As the model's numbers are stored, or shorter.
    template <class Array>
    h2o_dtype stored_as(const Array& array, const char* name) const {
        const nb::dlpack::dtype type = array.dtype();
        const bool real = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float);
        if (real && type.bits == 32 && shape_.dtype == H2O_F32) return H2O_F32;
        if (real && type.bits == 16) return H2O_F16;
        if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && type.bits == 8) return H2O_I8;
        throw nb::value_error((std::string(name) + " must be " +
                               (shape_.dtype == H2O_F16 ? "float16 or int8" : "float32, float16 or int8"))
                                  .c_str());
    }

    // `v` is null where keys alone are read.
    template <class Array, class ScalePair>
    h2o_kv cache_of(const Array& k, const Array* v, const Pages& pages, int32_t page_rows,
                    const ScalePair& scales) const {
        h2o_kv kv{};
        kv.dtype = stored_as(k, "k_cache");
        const int64_t rows = size_of(k, 0);
        expect(k, "k_cache", {-1, shape_.kv_heads, shape_.head_size});
        if (v != nullptr) {
            const bool in_keys = same(*v, k);
            expect(*v, "v_cache", {rows, shape_.kv_heads, in_keys ? shape_.head_size : shape_.value_size});
            if (stored_as(*v, "v_cache") != kv.dtype)
                throw nb::value_error("k_cache and v_cache must have the same dtype");
        }
        if ((kv.dtype == H2O_I8) != scales.has_value())
            throw nb::value_error("a cache of integers has scales, and no other has");
        kv.k = const_cast<void*>(static_cast<const void*>(k.data()));
        kv.v = v ? const_cast<void*>(static_cast<const void*>(v->data())) : nullptr;
        kv.rows = rows;
        if (scales) {
            expect(scales->first, "scales of k_cache", {rows, shape_.kv_heads});
            expect(scales->second, "scales of v_cache", {rows, shape_.kv_heads});
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
        expect_tensor(array, name, {n, heads, in_keys ? shape_.head_size : shape_.value_size});
    }

    template <class Array>
    void expect_outputs(const Array& array, const char* name, int64_t n) const {
        expect_tensor(array, name, {n, shape_.query_heads, shape_.value_size});
    }

    void expect_state(int64_t n, const Output& o, const Float32& m, const Float32& l) const {
        expect_outputs(o, "o", n);
        expect(m, "m", {n, shape_.query_heads});
        expect(l, "l", {n, shape_.query_heads});
    }

    h2o_shape scored(int64_t heads) const {
        h2o_shape shape = shape_;
        shape.score_heads = heads;
        return shape;
    }

    template <class Call>
    void run(const char* name, Call&& call) {
        h2o_status status;
        {
            nb::gil_scoped_release release;
            status = call();
        }
        check(status, name);
    }

    h2o_shape shape_;
    h2o_cpu* context_ = nullptr;
};

}  // namespace

NB_MODULE(_cpu, module) {
    module.doc() =
        "Attention operators of ONNX domain `h2o` on the CPU.\n\n"
        "h2o_runtime.operators has their tensors and attributes, AttentionProvider their meaning. Arrays are "
        "C-contiguous;\nthose without a type here are float32, or float16 with half=True. Caches can be "
        "float16 "
        "too, or int8 with\nscales [rows, Hkv] of keys and of values.";
    module.def(
        "product_instructions",
        [] {
            const h2o_products* kernels = nullptr;
            check(h2o_products_find(nullptr, &kernels), "product_instructions");
            return std::string(h2o_products_isa(kernels));
        },
        "What products with integer weights run on here: avx512vnni, avxvnni, dotprod, or scalar, which is "
        "slow.");
    nb::class_<Kernels>(
        module, "Kernels",
        "One model shape's operators and the threads that run them. threads <= 0: all that the process may "
        "use.\n\nValueError: an argument that the kernels refuse; MemoryError: no room for their scratch.")
        .def(nb::init<int, std::optional<std::string>, int64_t, int64_t, int64_t, double, bool, int64_t>(),
             "threads"_a, "isa"_a.none(), "query_heads"_a, "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a,
             "value_size"_a = 0)
        .def_prop_ro("threads", &Kernels::threads)
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("scratch_bytes", &Kernels::scratch_bytes)
        .def("chunked_intra_attention", &Kernels::chunked_intra_attention, "q"_a, "k"_a, "v"_a,
             "chunk_size"_a, "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert(),
             "colsum"_a.noconvert().none())
        .def("memory_attention", &Kernels::memory_attention, "q"_a, "k_mem"_a, "v_mem"_a, "o"_a.noconvert(),
             "m"_a.noconvert(), "l"_a.noconvert(), "colsum"_a.noconvert().none())
        .def("memory_fused_attention", &Kernels::memory_fused_attention, "q"_a, "k_cache"_a, "v_cache"_a,
             "memory"_a, "tile"_a, "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert(),
             "colsum"_a.noconvert().none(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("memory_gather", &Kernels::memory_gather, "k_cache"_a, "v_cache"_a, "memory"_a,
             "k_mem"_a.noconvert(), "v_mem"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("cache_append", &Kernels::cache_append, "k"_a, "v"_a, "first"_a, "k_cache"_a.noconvert(),
             "v_cache"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("online_softmax_fusion", &Kernels::online_softmax_fusion, "o_a"_a, "m_a"_a, "l_a"_a, "o_b"_a,
             "m_b"_a, "l_b"_a, "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert())
        .def("candidate_score", &Kernels::candidate_score, "q_window"_a, "k"_a, "k_cache"_a, "memory"_a,
             "score_mem"_a.noconvert(), "score_chunk"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("memory_select", &Kernels::memory_select, "score"_a, "memory"_a, "start"_a, "stop"_a, "local"_a,
             "sink"_a, "memory_next"_a.noconvert())
        .def("query_select", &Kernels::query_select, "q"_a, "k_cache"_a, "candidates"_a, "past"_a, "tile"_a,
             "stride"_a, "share"_a, "reach"_a, "local"_a, "sink"_a, "memory_next"_a.noconvert(),
             "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("cached_attention", &Kernels::cached_attention, "q"_a, "k_cache"_a, "v_cache"_a, "length"_a,
             "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("scored_attention", &Kernels::scored_attention, "q"_a, "k_cache"_a, "v_cache"_a, "length"_a,
             "o"_a.noconvert(), "seen"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none(),
             "Attention of one row, the last, and each row's probability, summed over the query heads of a "
             "key.")
        .def("landmark_update", &Kernels::landmark_update, "k_cache"_a, "v_cache"_a, "k_mean"_a.noconvert(),
             "v_mean"_a.noconvert(), "start"_a, "length"_a, "block_size"_a, "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("subquadratic_attention", &Kernels::subquadratic_attention, "q"_a, "k_cache"_a, "v_cache"_a,
             "k_mean"_a, "v_mean"_a, "global_rows"_a, "length"_a, "window"_a, "block_size"_a, "strides"_a,
             "count_bias"_a, "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("page_bounds", &Kernels::page_bounds, "k_cache"_a, "k_min"_a.noconvert(), "k_max"_a.noconvert(),
             "start"_a, "length"_a, "page_size"_a, "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("page_select", &Kernels::page_select, "q"_a, "k_min"_a, "k_max"_a, "length"_a, "page_size"_a,
             "page_list"_a.noconvert())
        .def("page_attention", &Kernels::page_attention, "q"_a, "k_cache"_a, "v_cache"_a, "page_list"_a,
             "length"_a, "page_size"_a, "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("vertical_slash_select", &Kernels::vertical_slash_select, "q"_a, "k_cache"_a, "length"_a,
             "sink"_a, "near"_a, "columns"_a.noconvert(), "distances"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("vertical_slash_attention", &Kernels::vertical_slash_attention, "q"_a, "k_cache"_a, "v_cache"_a,
             "columns"_a, "distances"_a, "length"_a, "o"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none());
}
