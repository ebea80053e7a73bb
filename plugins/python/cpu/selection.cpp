// What votes for cache rows, and selects a memory by its votes.
#include "kernels.h"

namespace h2o::python::cpu {

namespace {

void candidate_score(Kernels& kernels, Input q_window, Input k, Input k_cache, Int32In memory,
                     Float32 score_mem, Float32 score_chunk, const Pages& pages, int32_t page_rows,
                     const Scales& scales) {
    const int64_t w = size_of(q_window, 0), n = size_of(k, 0), slots = size_of(memory, 1);
    const h2o_shape shape = kernels.scored(size_of(score_chunk, 1));
    kernels.expect_rows(q_window, "q_window", w, kernels.shape.query_heads);
    kernels.expect_rows(k, "k", n, kernels.shape.kv_heads);
    expect(memory, "memory", {shape.score_heads, -1});
    expect(score_mem, "score_mem", {shape.score_heads, slots});
    expect(score_chunk, "score_chunk", {n, shape.score_heads});
    const h2o_kv kv = kernels.cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
    kernels.run("candidate_score", [&](h2o_cpu* context) {
        return h2o_cpu_candidate_score(context, &shape, w, n, slots, q_window.data(), k.data(), &kv,
                                       memory.data(), score_mem.data(), score_chunk.data());
    });
}

void memory_select(Kernels& kernels, Float32In score, Int32In memory, int64_t start, int64_t stop,
                   int64_t local, int64_t sink, Int32 memory_next) {
    const int64_t heads = size_of(memory_next, 0), cap = size_of(score, 0), previous = size_of(memory, 1);
    expect(score, "score", {-1, heads});
    expect(memory, "memory", {heads, -1});
    expect(memory_next, "memory_next", {-1, -1});
    kernels.run("memory_select", [&](h2o_cpu* context) {
        return h2o_cpu_memory_select(context, heads, cap, score.data(), previous, memory.data(), start, stop,
                                     local, size_of(memory_next, 1), sink, memory_next.data());
    });
}

void query_select(Kernels& kernels, Input q, Input k_cache, Int32In candidates, Int64In past, int64_t tile,
                  int64_t stride, int64_t share, int64_t reach, int64_t local, int64_t sink,
                  Int32 memory_next, const Pages& pages, int32_t page_rows, const Scales& scales) {
    const h2o_shape shape = kernels.scored(size_of(memory_next, 1));
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
    kernels.expect_rows(q, "q", tiles.n, kernels.shape.query_heads);
    expect(candidates, "candidates", {-1, shape.score_heads, -1});
    expect(past, "past", {-1});
    expect(memory_next, "memory_next", {tiles.tiles, -1, -1});
    const h2o_kv kv = kernels.cache_of<Input>(k_cache, nullptr, pages, page_rows, scales);
    kernels.run("query_select", [&](h2o_cpu* context) {
        return h2o_cpu_query_select(context, &shape, &tiles, q.data(), &kv, candidates.data(), past.data(),
                                    memory_next.data());
    });
}

}  // namespace

void bind_selection(nb::class_<Kernels>& kernels) {
    kernels
        .def("candidate_score", &candidate_score, "q_window"_a, "k"_a, "k_cache"_a, "memory"_a,
             "score_mem"_a.noconvert(), "score_chunk"_a.noconvert(), "pages"_a = nb::none(),
             "page_rows"_a = 0, "scales"_a = nb::none())
        .def("memory_select", &memory_select, "score"_a, "memory"_a, "start"_a, "stop"_a, "local"_a, "sink"_a,
             "memory_next"_a.noconvert())
        .def("query_select", &query_select, "q"_a, "k_cache"_a, "candidates"_a, "past"_a, "tile"_a,
             "stride"_a, "share"_a, "reach"_a, "local"_a, "sink"_a, "memory_next"_a.noconvert(),
             "pages"_a = nb::none(), "page_rows"_a = 0, "scales"_a = nb::none());
}

}  // namespace h2o::python::cpu
