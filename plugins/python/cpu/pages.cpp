// Attention to the pages whose bounds promise most.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void page_bounds(Kernels& kernels, Input k_cache, Float32 k_min, Float32 k_max, int64_t start, int64_t length,
                 int64_t page_size, const Pages& pages, int32_t page_rows, const Scales& scales) {
    const int64_t count = kernels.expect_landmarks(k_min, k_max);
    const h2o_kv kv = kernels.cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
    kernels.run("page_bounds", [&](h2o_cpu* context) {
        return h2o_cpu_page_bounds(context, &kernels.shape, &kv, start, length, page_size, count,
                                   k_min.data(), k_max.data());
    });
}

void page_select(Kernels& kernels, Input q, Float32In k_min, Float32In k_max, int64_t length,
                 int64_t page_size, Int32 page_list) {
    const h2o_shape shape = kernels.scored(size_of(page_list, 0));
    const int64_t count = kernels.expect_landmarks(k_min, k_max);
    kernels.expect_rows(q, "q", 1, shape.query_heads);
    expect(page_list, "page_list", {shape.score_heads, -1});
    kernels.run("page_select", [&](h2o_cpu* context) {
        return h2o_cpu_page_select(context, &shape, q.data(), length, page_size, count, k_min.data(),
                                   k_max.data(), size_of(page_list, 1), page_list.data());
    });
}

void page_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, Int32In page_list,
                    int64_t length, int64_t page_size, Output o, const Pages& pages, int32_t page_rows,
                    const Scales& scales) {
    const h2o_shape shape = kernels.scored(size_of(page_list, 0));
    kernels.expect_rows(q, "q", 1, shape.query_heads);
    expect(page_list, "page_list", {shape.score_heads, -1});
    kernels.expect_rows(o, "o", 1, shape.query_heads);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("page_attention", [&](h2o_cpu* context) {
        return h2o_cpu_page_attention(context, &shape, q.data(), &kv, length, page_size,
                                      size_of(page_list, 1), page_list.data(), o.data());
    });
}

}  // namespace

void bind_pages(nb::class_<Kernels>& kernels) {
    kernels
        .def("page_bounds", &page_bounds, "k_cache"_a, "k_min"_a.noconvert(), "k_max"_a.noconvert(),
             "start"_a, "length"_a, "page_size"_a, "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none())
        .def("page_select", &page_select, "q"_a, "k_min"_a, "k_max"_a, "length"_a, "page_size"_a,
             "page_list"_a.noconvert())
        .def("page_attention", &page_attention, "q"_a, "k_cache"_a, "v_cache"_a, "page_list"_a, "length"_a,
             "page_size"_a, "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none());
}

}  // namespace h2o::python::cpu
