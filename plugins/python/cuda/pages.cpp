// Attention to the pages whose bounds promise most.
#include "kernels.h"

namespace h2o::python {

namespace {

void page_bounds(const Kernels& kernels, const Stream& stream, int32_t most_rows, int32_t blocks,
                 Address k_cache, int64_t capacity, Address k_min, Address k_max, Address start,
                 Address length, int32_t page_size, Address pages, int32_t page_rows, Address k_scales,
                 Address v_scales, int32_t item_bytes) {
    const h2o_kv kv = kernels.kv_at(k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_page_bounds(stream.get(), &kernels.shape, &kv, at<int64_t>(start), at<int64_t>(length),
                               most_rows, page_size, blocks, at<float>(k_min), at<float>(k_max),
                               at<float>(k_min), at<float>(k_max)),
          "page_bounds");
}

size_t page_select_workspace(const Kernels& kernels, int32_t blocks, int32_t score_heads) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    return h2o_cuda_page_select_workspace(&shape, blocks);
}

void page_select(const Kernels& kernels, const Stream& stream, int32_t blocks, Address q, Address k_min,
                 Address k_max, Address length, int32_t page_size, int32_t budget, int32_t score_heads,
                 Address page_list, Address workspace, size_t workspace_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    check(h2o_cuda_page_select(stream.get(), &shape, at<void>(q), at<int64_t>(length), page_size, blocks,
                               at<float>(k_min), at<float>(k_max), budget, at<int32_t>(page_list),
                               at<void>(workspace), workspace_bytes),
          "page_select");
}

void page_attention(const Kernels& kernels, const Stream& stream, int32_t slots, int32_t score_heads,
                    Address q, Address k_cache, Address v_cache, int64_t capacity, Address page_list,
                    Address length, int32_t page_size, Address o, Address pages, int32_t page_rows,
                    Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_page_attention(stream.get(), &shape, at<void>(q), &kv, at<int64_t>(length), page_size,
                                  slots, at<int32_t>(page_list), at<void>(o)),
          "page_attention");
}

}  // namespace

void bind_pages(nb::class_<Kernels>& kernels) {
    kernels
        .def("page_bounds", &page_bounds, "stream"_a, nb::kw_only(), "most_rows"_a, "blocks"_a, "k_cache"_a,
             "capacity"_a, "k_min"_a, "k_max"_a, "start"_a, "length"_a, "page_size"_a, "pages"_a = 0,
             "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "In place. At most `most_rows` lie between `start` and `length`.")
        .def("page_select_workspace", &page_select_workspace, "blocks"_a, "score_heads"_a)
        .def("page_select", &page_select, "stream"_a, nb::kw_only(), "blocks"_a, "q"_a, "k_min"_a, "k_max"_a,
             "length"_a, "page_size"_a, "budget"_a, "score_heads"_a, "page_list"_a, "workspace"_a,
             "workspace_bytes"_a)
        .def("page_attention", &page_attention, "stream"_a, nb::kw_only(), "slots"_a, "score_heads"_a, "q"_a,
             "k_cache"_a, "v_cache"_a, "capacity"_a, "page_list"_a, "length"_a, "page_size"_a, "o"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "`slots` is the length of a list of pages.");
}

}  // namespace h2o::python
