// Landmarks of the cache's blocks, and the subquadratic pattern over them.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void landmark_update(Kernels& kernels, Input k_cache, Input v_cache, Float32 k_mean, Float32 v_mean,
                     int64_t start, int64_t length, int64_t block_size, const Pages& pages, int32_t page_rows,
                     const Scales& scales) {
    const int64_t blocks = kernels.expect_landmarks(k_mean, v_mean);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("landmark_update", [&](h2o_cpu* context) {
        return h2o_cpu_landmark_update(context, &kernels.shape, &kv, start, length, block_size, blocks,
                                       k_mean.data(), v_mean.data());
    });
}

void subquadratic_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, Float32In k_mean,
                            Float32In v_mean, Int32In global_rows, int64_t length, int64_t window,
                            int64_t block_size, int64_t strides, int64_t count_bias, Output o,
                            const Pages& pages, int32_t page_rows, const Scales& scales) {
    const int64_t n = size_of(q, 0), blocks = kernels.expect_landmarks(k_mean, v_mean);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    expect(global_rows, "global_rows", {-1});
    kernels.expect_rows(o, "o", n, kernels.shape.query_heads);
    if (block_size > 0 && blocks < length / block_size)
        throw nb::value_error("k_mean and v_mean must have a row for every complete block");
    const h2o_subquadratic pattern = h2o_subquadratic_of(window, block_size, strides, count_bias);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("subquadratic_attention", [&](h2o_cpu* context) {
        return h2o_cpu_subquadratic_attention(context, &kernels.shape, &pattern, n, q.data(), &kv, length,
                                              k_mean.data(), v_mean.data(), size_of(global_rows, 0),
                                              global_rows.data(), o.data());
    });
}

}  // namespace

void bind_landmarks(nb::class_<Kernels>& kernels) {
    kernels
        .def("landmark_update", &landmark_update, "k_cache"_a, "v_cache"_a, "k_mean"_a.noconvert(),
             "v_mean"_a.noconvert(), "start"_a, "length"_a, "block_size"_a, "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("subquadratic_attention", &subquadratic_attention, "q"_a, "k_cache"_a, "v_cache"_a, "k_mean"_a,
             "v_mean"_a, "global_rows"_a, "length"_a, "window"_a, "block_size"_a, "strides"_a, "count_bias"_a,
             "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none());
}

}  // namespace h2o::python::cpu
