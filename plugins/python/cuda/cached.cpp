// Exact attention to a cache, and its new rows.
#include "kernels.h"

namespace h2o::python {

namespace {

size_t cached_attention_workspace(const Kernels& kernels, int32_t n, int32_t capacity) {
    return h2o_cuda_cached_attention_workspace(&kernels.shape, n, capacity);
}

void cached_attention(const Kernels& kernels, const Stream& stream, int32_t n, Address q, Address k_cache,
                      Address v_cache, int64_t capacity, Address length, Address o, Address workspace,
                      size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                      Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_cached_attention(stream.get(), &kernels.shape, n, at<void>(q), &kv, at<int64_t>(length),
                                    at<void>(o), at<void>(workspace), workspace_bytes),
          "cached_attention");
}

void step_attention(const Kernels& kernels, const Stream& stream, Address q, Address k, Address v,
                    Address k_cache, Address v_cache, int64_t capacity, Address length, Address o,
                    Address arrivals, Address workspace, size_t workspace_bytes, Address pages,
                    int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_step_attention(stream.get(), &kernels.shape, at<void>(q), at<void>(k), at<void>(v), &kv,
                                  at<int64_t>(length), at<void>(o), at<uint32_t>(arrivals),
                                  at<void>(workspace), workspace_bytes),
          "step_attention");
}

size_t scored_attention_workspace(const Kernels& kernels, int32_t capacity) {
    return h2o_cuda_scored_attention_workspace(&kernels.shape, capacity);
}

void scored_attention(const Kernels& kernels, const Stream& stream, Address q, Address k_cache,
                      Address v_cache, int64_t capacity, Address length, Address o, Address seen,
                      Address workspace, size_t workspace_bytes, Address pages, int32_t page_rows,
                      Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_scored_attention(stream.get(), &kernels.shape, at<void>(q), &kv, at<int64_t>(length),
                                    at<void>(o), at<float>(seen), at<void>(workspace), workspace_bytes),
          "scored_attention");
}

void cache_append(const Kernels& kernels, const Stream& stream, Address k, Address v, Address k_cache,
                  Address v_cache, int64_t capacity, int32_t n, Address position, int64_t first,
                  Address pages, int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_cache_append(stream.get(), &kernels.shape, n, at<void>(k), at<void>(v),
                                at<int64_t>(position), first, &kv),
          "cache_append");
}

}  // namespace

void bind_cached(nb::class_<Kernels>& kernels) {
    kernels.def("cached_attention_workspace", &cached_attention_workspace, "n"_a, "capacity"_a)
        .def("cached_attention", &cached_attention, "stream"_a, nb::kw_only(), "n"_a, "q"_a, "k_cache"_a,
             "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0,
             "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0)
        .def("step_attention", &step_attention, "stream"_a, nb::kw_only(), "q"_a, "k"_a, "v"_a, "k_cache"_a,
             "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "arrivals"_a, "workspace"_a, "workspace_bytes"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "Cache row `length` - 1 becomes k and v, and one row attends to all up to it. `arrivals` are "
             "uint32 [query heads], zeros that every call leaves as zeros.")
        .def("scored_attention_workspace", &scored_attention_workspace, "capacity"_a)
        .def("scored_attention", &scored_attention, "stream"_a, nb::kw_only(), "q"_a, "k_cache"_a,
             "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "seen"_a, "workspace"_a, "workspace_bytes"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "Attention of one row, the last, and each row's probability, summed over the query heads of a "
             "key.")
        .def(
            "cache_append", &cache_append, "stream"_a, nb::kw_only(), "k"_a, "v"_a, "k_cache"_a, "v_cache"_a,
            "capacity"_a, "n"_a = 1, "position"_a = 0, "first"_a = 0, "pages"_a = 0, "page_rows"_a = 0,
            "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
            "Cache rows from `first` on, or from `position` on, an int64 on the device, become k and v, each "
            "[n, Hkv, d], as the cache stores them.");
}

}  // namespace h2o::python
