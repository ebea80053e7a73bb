// Exact attention to a cache.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void cached_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, int64_t length, Output o,
                      const Pages& pages, int32_t page_rows, const Scales& scales) {
    const int64_t n = size_of(q, 0);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    kernels.expect_outputs(o, "o", n);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("cached_attention", [&](h2o_cpu* context) {
        return h2o_cpu_cached_attention(context, &kernels.shape, n, q.data(), &kv, length, o.data());
    });
}

// The row is appended first.
void step_attention(Kernels& kernels, Input q, Input k, Input v, Output k_cache, Output v_cache,
                    int64_t length, Output o, const Pages& pages, int32_t page_rows,
                    const OwnScales& scales) {
    kernels.expect_rows(q, "q", 1, kernels.shape.query_heads);
    kernels.expect_rows(k, "k", 1, kernels.shape.kv_heads);
    kernels.expect_values(v, "v", 1, kernels.shape.kv_heads, same(v_cache, k_cache));
    kernels.expect_outputs(o, "o", 1);
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("step_attention", [&](h2o_cpu* context) {
        const h2o_status status =
            h2o_cpu_cache_append(context, &kernels.shape, 1, k.data(), v.data(), length - 1, &kv);
        if (status != H2O_OK) return status;
        return h2o_cpu_cached_attention(context, &kernels.shape, 1, q.data(), &kv, length, o.data());
    });
}

void scored_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, int64_t length, Output o,
                      Float32 seen, const Pages& pages, int32_t page_rows, const Scales& scales) {
    kernels.expect_rows(q, "q", 1, kernels.shape.query_heads);
    kernels.expect_outputs(o, "o", 1);
    expect(seen, "seen", {-1, kernels.shape.kv_heads});
    if (size_of(seen, 0) < length) throw nb::value_error("seen must have a row for every row of the cache");
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("scored_attention", [&](h2o_cpu* context) {
        return h2o_cpu_scored_attention(context, &kernels.shape, q.data(), &kv, length, o.data(),
                                        seen.data());
    });
}

}  // namespace

void bind_cached(nb::class_<Kernels>& kernels) {
    kernels
        .def("cached_attention", &cached_attention, "q"_a, "k_cache"_a, "v_cache"_a, "length"_a,
             "o"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("step_attention", &step_attention, "q"_a, "k"_a, "v"_a, "k_cache"_a.noconvert(),
             "v_cache"_a.noconvert(), "length"_a, "o"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none(),
             "Attention of one row, the last, whose own key and value become the cache's last first.")
        .def("scored_attention", &scored_attention, "q"_a, "k_cache"_a, "v_cache"_a, "length"_a,
             "o"_a.noconvert(), "seen"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0,
             "scales"_a = nb::none(),
             "Attention of one row, the last, and each row's probability, summed over the query heads of a "
             "key.");
}

}  // namespace h2o::python::cpu
