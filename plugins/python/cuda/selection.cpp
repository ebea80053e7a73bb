// What votes for cache rows, adds up their scores, and selects a memory by them.
#include "kernels.h"

namespace h2o::python {

namespace {

size_t candidate_score_workspace(const Kernels& kernels, int32_t window, int32_t n, int32_t slots,
                                 int32_t score_heads) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    return h2o_cuda_candidate_score_workspace(&shape, window, n, slots);
}

void candidate_score(const Kernels& kernels, const Stream& stream, int32_t window, int32_t n, int32_t slots,
                     int32_t score_heads, Address q_window, Address k, Address k_cache, int64_t capacity,
                     Address memory, Address score_mem, Address score_chunk, Address workspace,
                     size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                     Address v_scales, int32_t item_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_kv kv = kernels.kv_at(k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_candidate_score(stream.get(), &shape, window, n, slots, at<void>(q_window), at<void>(k),
                                   &kv, at<int32_t>(memory), at<float>(score_mem), at<float>(score_chunk),
                                   at<void>(workspace), workspace_bytes),
          "candidate_score");
}

size_t query_select_workspace(const Kernels& kernels, int32_t n, int32_t tile, int32_t stride, int32_t slots,
                              int32_t score_heads, int32_t capacity) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    return h2o_cuda_query_select_workspace(&shape, n, tile, stride, slots, capacity);
}

void query_select(const Kernels& kernels, const Stream& stream, int32_t n, int32_t tile, int32_t stride,
                  int32_t share, int32_t reach, int32_t slots, int32_t score_heads, int32_t local,
                  int32_t heavy, int32_t sink, Address q, Address k_cache, int64_t capacity,
                  Address candidates, Address past, Address memory_next, Address workspace,
                  size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                  Address v_scales, int32_t item_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_kv kv = kernels.kv_at(k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_query_select(stream.get(), &shape, n, tile, stride, share, reach, slots, local, heavy,
                                sink, at<void>(q), &kv, at<int32_t>(candidates), at<int64_t>(past),
                                at<int32_t>(memory_next), at<void>(workspace), workspace_bytes),
          "query_select");
}

void score_update(const Stream& stream, int32_t score_heads, int32_t slots, Address memory, Address values,
                  bool replace, Address score) {
    check(h2o_cuda_score_update(stream.get(), score_heads, slots, at<int32_t>(memory), at<float>(values),
                                replace, at<float>(score)),
          "score_update");
}

void memory_step(const Stream& stream, int32_t score_heads, int32_t capacity, int32_t previous_slots,
                 int32_t local, int32_t heavy, int32_t sink, int32_t start, int32_t stop, Address memory,
                 Address values, bool replace, Address score, Address memory_next, Address last, Address set,
                 Address set_scores) {
    const h2o_cuda_next_memory next = {at<int32_t>(memory_next), at<int32_t>(last), at<int32_t>(set),
                                       at<float>(set_scores)};
    check(
        h2o_cuda_memory_step(stream.get(), score_heads, capacity, previous_slots, local, heavy, sink, start,
                             stop, at<int32_t>(memory), at<float>(values), replace, at<float>(score), &next),
        "memory_step");
}

}  // namespace

void bind_selection(nb::class_<Kernels>& kernels, nb::module_& module) {
    kernels
        .def("candidate_score_workspace", &candidate_score_workspace, "window"_a, "n"_a, "slots"_a,
             "score_heads"_a)
        .def("candidate_score", &candidate_score, "stream"_a, nb::kw_only(), "window"_a, "n"_a, "slots"_a,
             "score_heads"_a, "q_window"_a, "k"_a, "k_cache"_a, "capacity"_a, "memory"_a, "score_mem"_a,
             "score_chunk"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0)
        .def("query_select_workspace", &query_select_workspace, nb::kw_only(), "n"_a, "tile"_a, "stride"_a,
             "slots"_a, "score_heads"_a, "capacity"_a)
        .def("query_select", &query_select, "stream"_a, nb::kw_only(), "n"_a, "tile"_a, "stride"_a, "share"_a,
             "reach"_a, "slots"_a, "score_heads"_a, "local"_a, "heavy"_a, "sink"_a, "q"_a, "k_cache"_a,
             "capacity"_a, "candidates"_a, "past"_a, "memory_next"_a, "workspace"_a, "workspace_bytes"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0);
    module.def("score_update", &score_update, "stream"_a, nb::kw_only(), "score_heads"_a, "slots"_a,
               "memory"_a, "values"_a, "replace"_a, "score"_a,
               "score [cap, Hs] at the positions memory [Hs, slots] += or = values [Hs, slots].");
    module.def(
        "memory_step", &memory_step, "stream"_a, nb::kw_only(), "score_heads"_a, "capacity"_a,
        "previous_slots"_a, "local"_a, "heavy"_a, "sink"_a, "start"_a, "stop"_a, "memory"_a, "values"_a,
        "replace"_a, "score"_a, "memory_next"_a, "last"_a = 0, "set"_a = 0, "set_scores"_a = 0,
        "The end of a chunk in one launch: score_update with `values`, unless they are a null pointer, the "
        "selection of the next memory, and copies of it and of its scores.");
}

}  // namespace h2o::python
