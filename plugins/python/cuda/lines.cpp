// Vertical-slash attention: to columns and diagonals.
#include "kernels.h"

namespace h2o::python {

namespace {

size_t vertical_slash_select_workspace(const Kernels& kernels, int32_t n, int32_t capacity) {
    return h2o_cuda_vertical_slash_select_workspace(&kernels.shape, n, capacity);
}

void vertical_slash_select(const Kernels& kernels, const Stream& stream, int32_t n, Address q,
                           Address k_cache, int64_t capacity, Address length, int32_t vertical, int32_t slash,
                           int32_t sink, int32_t near, Address columns, Address distances, Address workspace,
                           size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                           Address v_scales, int32_t item_bytes) {
    const h2o_kv kv = kernels.kv_at(k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_vertical_slash_select(
              stream.get(), &kernels.shape, n, at<void>(q), &kv, at<int64_t>(length), vertical, slash, sink,
              near, at<int32_t>(columns), at<int32_t>(distances), at<void>(workspace), workspace_bytes),
          "vertical_slash_select");
}

size_t vertical_slash_attention_workspace(const Kernels& kernels, int32_t n, int32_t capacity,
                                          int32_t slash) {
    return h2o_cuda_vertical_slash_attention_workspace(&kernels.shape, n, capacity, slash);
}

void vertical_slash_attention(const Kernels& kernels, const Stream& stream, int32_t n, Address q,
                              Address k_cache, Address v_cache, int64_t capacity, int32_t vertical,
                              Address columns, int32_t slash, Address distances, Address length, Address o,
                              Address workspace, size_t workspace_bytes, Address pages, int32_t page_rows,
                              Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_vertical_slash_attention(stream.get(), &kernels.shape, n, at<void>(q), &kv,
                                            at<int64_t>(length), vertical, at<int32_t>(columns), slash,
                                            at<int32_t>(distances), at<void>(o), at<void>(workspace),
                                            workspace_bytes),
          "vertical_slash_attention");
}

}  // namespace

void bind_lines(nb::class_<Kernels>& kernels) {
    kernels.def("vertical_slash_select_workspace", &vertical_slash_select_workspace, "n"_a, "capacity"_a)
        .def("vertical_slash_select", &vertical_slash_select, "stream"_a, nb::kw_only(), "n"_a, "q"_a,
             "k_cache"_a, "capacity"_a, "length"_a, "vertical"_a, "slash"_a, "sink"_a, "near"_a, "columns"_a,
             "distances"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "columns [Hq, vertical] and distances [Hq, slash].")
        .def("vertical_slash_attention_workspace", &vertical_slash_attention_workspace, "n"_a, "capacity"_a,
             "slash"_a)
        .def("vertical_slash_attention", &vertical_slash_attention, "stream"_a, nb::kw_only(), "n"_a, "q"_a,
             "k_cache"_a, "v_cache"_a, "capacity"_a, "vertical"_a, "columns"_a, "slash"_a, "distances"_a,
             "length"_a, "o"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "columns [Hq, vertical] and distances [Hq, slash].");
}

}  // namespace h2o::python
