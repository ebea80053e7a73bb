// Vertical-slash attention: to columns and diagonals.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void vertical_slash_select(Kernels& kernels, Input q, Input k_cache, int64_t length, int64_t sink,
                           int64_t near, Int32 columns, Int32 distances, const Pages& pages,
                           int32_t page_rows, const Scales& scales) {
    const int64_t n = size_of(q, 0);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    expect(columns, "columns", {kernels.shape.query_heads, -1});
    expect(distances, "distances", {kernels.shape.query_heads, -1});
    const h2o_kv kv = kernels.cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
    kernels.run("vertical_slash_select", [&](h2o_cpu* context) {
        return h2o_cpu_vertical_slash_select(context, &kernels.shape, n, q.data(), &kv, length,
                                             size_of(columns, 1), size_of(distances, 1), sink, near,
                                             columns.data(), distances.data());
    });
}

void vertical_slash_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, Int32In columns,
                              Int32In distances, int64_t length, Output o, const Pages& pages,
                              int32_t page_rows, const Scales& scales) {
    const int64_t n = size_of(q, 0);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    expect(columns, "columns", {kernels.shape.query_heads, -1});
    expect(distances, "distances", {kernels.shape.query_heads, -1});
    kernels.expect_rows(o, "o", n, kernels.shape.query_heads);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("vertical_slash_attention", [&](h2o_cpu* context) {
        return h2o_cpu_vertical_slash_attention(context, &kernels.shape, n, q.data(), &kv, length,
                                                size_of(columns, 1), columns.data(), size_of(distances, 1),
                                                distances.data(), o.data());
    });
}

}  // namespace

void bind_lines(nb::class_<Kernels>& kernels) {
    kernels
        .def("vertical_slash_select", &vertical_slash_select, "q"_a, "k_cache"_a, "length"_a, "sink"_a,
             "near"_a, "columns"_a.noconvert(), "distances"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("vertical_slash_attention", &vertical_slash_attention, "q"_a, "k_cache"_a, "v_cache"_a,
             "columns"_a, "distances"_a, "length"_a, "o"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none());
}

}  // namespace h2o::python::cpu
