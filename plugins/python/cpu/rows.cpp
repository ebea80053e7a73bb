// What only moves, converts or blends rows.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void memory_gather(Kernels& kernels, Input k_cache, Input v_cache, Int32In memory, Output k_mem, Output v_mem,
                   const Pages& pages, int32_t page_rows, const Scales& scales) {
    const int64_t slots = size_of(memory, 1);
    const h2o_shape shape = kernels.scored(size_of(memory, 0));
    expect(memory, "memory", {shape.score_heads, -1});
    kernels.expect_tensor(k_mem, "k_mem", {shape.score_heads, slots, kernels.shape.head_size});
    kernels.expect_tensor(v_mem, "v_mem", {shape.score_heads, slots, kernels.shape.value_size});
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("memory_gather", [&](h2o_cpu* context) {
        return h2o_cpu_memory_gather(context, &shape, slots, &kv, memory.data(), k_mem.data(), v_mem.data());
    });
}

void cache_append(Kernels& kernels, Input k, Input v, int64_t first, Output k_cache, Output v_cache,
                  const Pages& pages, int32_t page_rows, const OwnScales& scales) {
    const int64_t n = size_of(k, 0);
    kernels.expect_rows(k, "k", n, kernels.shape.kv_heads);
    kernels.expect_values(v, "v", n, kernels.shape.kv_heads, same(v_cache, k_cache));
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("cache_append", [&](h2o_cpu* context) {
        return h2o_cpu_cache_append(context, &kernels.shape, n, k.data(), v.data(), first, &kv);
    });
}

void online_softmax_fusion(Kernels& kernels, Input o_a, Float32In m_a, Float32In l_a, Input o_b,
                           Float32In m_b, Float32In l_b, Output o, Float32 m, Float32 l) {
    const int64_t n = size_of(o_a, 0);
    kernels.expect_outputs(o_a, "o_a", n);
    kernels.expect_outputs(o_b, "o_b", n);
    for (const Float32In* state : {&m_a, &l_a, &m_b, &l_b})
        expect(*state, "a state", {n, kernels.shape.query_heads});
    kernels.expect_state(n, o, m, l);
    kernels.run("online_softmax_fusion", [&](h2o_cpu* context) {
        return h2o_cpu_online_softmax_fusion(context, &kernels.shape, n, o_a.data(), m_a.data(), l_a.data(),
                                             o_b.data(), m_b.data(), l_b.data(), o.data(), m.data(),
                                             l.data());
    });
}

}  // namespace

void bind_rows(nb::class_<Kernels>& kernels) {
    kernels
        .def("memory_gather", &memory_gather, "k_cache"_a, "v_cache"_a, "memory"_a, "k_mem"_a.noconvert(),
             "v_mem"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("cache_append", &cache_append, "k"_a, "v"_a, "first"_a, "k_cache"_a.noconvert(),
             "v_cache"_a.noconvert(), "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none())
        .def("online_softmax_fusion", &online_softmax_fusion, "o_a"_a, "m_a"_a, "l_a"_a, "o_b"_a, "m_b"_a,
             "l_b"_a, "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert());
}

}  // namespace h2o::python::cpu
