// Attention inside chunks and to a memory of cache rows.
#include <algorithm>

#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void chunked_intra_attention(Kernels& kernels, Input q, Input k, Input v, int64_t chunk_size, Output o,
                             Float32 m, Float32 l, std::optional<Float32> colsum) {
    const int64_t n = size_of(q, 0);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    kernels.expect_rows(k, "k", n, kernels.shape.kv_heads);
    kernels.expect_values(v, "v", n, kernels.shape.kv_heads, same(v, k));
    kernels.expect_state(n, o, m, l);
    const h2o_shape shape = kernels.scored(colsum ? size_of(*colsum, 1) : kernels.shape.kv_heads);
    if (colsum) expect(*colsum, "colsum", {n, shape.score_heads});
    float* const sums = colsum ? colsum->data() : nullptr;
    kernels.run("chunked_intra_attention", [&](h2o_cpu* context) {
        return h2o_cpu_chunked_intra_attention(context, &shape, n, chunk_size, q.data(), k.data(), v.data(),
                                               o.data(), m.data(), l.data(), sums);
    });
}

void memory_attention(Kernels& kernels, Input q, Input k_mem, Input v_mem, Output o, Float32 m, Float32 l,
                      std::optional<Float32> colsum) {
    const int64_t n = size_of(q, 0), slots = size_of(k_mem, 1);
    const h2o_shape shape = kernels.scored(size_of(k_mem, 0));
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    kernels.expect_tensor(k_mem, "k_mem", {shape.score_heads, slots, kernels.shape.head_size});
    kernels.expect_tensor(v_mem, "v_mem", {shape.score_heads, slots, kernels.shape.value_size});
    kernels.expect_state(n, o, m, l);
    if (colsum) expect(*colsum, "colsum", {shape.score_heads, slots});
    float* const sums = colsum ? colsum->data() : nullptr;
    kernels.run("memory_attention", [&](h2o_cpu* context) {
        return h2o_cpu_memory_attention(context, &shape, n, slots, q.data(), k_mem.data(), v_mem.data(),
                                        o.data(), m.data(), l.data(), sums);
    });
}

void memory_fused_attention(Kernels& kernels, Input q, Input k_cache, Input v_cache, Int32In memory,
                            int64_t tile, Output o, Float32 m, Float32 l, std::optional<Float32> colsum,
                            const Pages& pages, int32_t page_rows, const Scales& scales) {
    const int64_t n = size_of(q, 0), slots = size_of(memory, 2);
    kernels.expect_rows(q, "q", n, kernels.shape.query_heads);
    kernels.expect_state(n, o, m, l);
    const h2o_shape shape = kernels.scored(size_of(memory, 1));
    const int64_t tiles = tile > 0 ? std::max<int64_t>((n + tile - 1) / tile, 1) : -1;
    expect(memory, "memory", {tiles, shape.score_heads, slots});
    if (colsum) expect(*colsum, "colsum", {shape.score_heads, slots});
    float* const sums = colsum ? colsum->data() : nullptr;
    const h2o_kv kv = kernels.cache_of(k_cache, &v_cache, pages, page_rows, scales);
    kernels.run("memory_fused_attention", [&](h2o_cpu* context) {
        return h2o_cpu_memory_fused_attention(context, &shape, n, tile, slots, q.data(), &kv, memory.data(),
                                              o.data(), m.data(), l.data(), sums);
    });
}

}  // namespace

void bind_memory(nb::class_<Kernels>& kernels) {
    kernels
        .def("chunked_intra_attention", &chunked_intra_attention, "q"_a, "k"_a, "v"_a, "chunk_size"_a,
             "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert(), "colsum"_a.noconvert().none())
        .def("memory_attention", &memory_attention, "q"_a, "k_mem"_a, "v_mem"_a, "o"_a.noconvert(),
             "m"_a.noconvert(), "l"_a.noconvert(), "colsum"_a.noconvert().none())
        .def("memory_fused_attention", &memory_fused_attention, "q"_a, "k_cache"_a, "v_cache"_a, "memory"_a,
             "tile"_a, "o"_a.noconvert(), "m"_a.noconvert(), "l"_a.noconvert(), "colsum"_a.noconvert().none(),
             "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none());
}

}  // namespace h2o::python::cpu
