// Landmarks of the cache's blocks, and the subquadratic pattern over them.
#include "kernels.h"

namespace h2o::python {

namespace {

void landmark_update(const Kernels& kernels, const Stream& stream, int32_t most_rows, int32_t blocks,
                     Address k_cache, Address v_cache, int64_t capacity, Address k_mean, Address v_mean,
                     Address start, Address length, int32_t block_size, Address pages, int32_t page_rows,
                     Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_landmark_update(stream.get(), &kernels.shape, &kv, at<int64_t>(start), at<int64_t>(length),
                                   most_rows, block_size, blocks, at<float>(k_mean), at<float>(v_mean),
                                   at<float>(k_mean), at<float>(v_mean)),
          "landmark_update");
}

void subquadratic_attention(const Kernels& kernels, const Stream& stream, int32_t n, int32_t slots, Address q,
                            Address k_cache, Address v_cache, int64_t capacity, Address k_mean,
                            Address v_mean, Address global_rows, Address length, int64_t window,
                            int64_t block_size, int32_t strides, int32_t count_bias, Address o, Address pages,
                            int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_subquadratic pattern = h2o_subquadratic_of(window, block_size, strides, count_bias);
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_subquadratic_attention(stream.get(), &kernels.shape, &pattern, n, at<void>(q), &kv,
                                          at<int64_t>(length), at<float>(k_mean), at<float>(v_mean), slots,
                                          at<int32_t>(global_rows), at<void>(o)),
          "subquadratic_attention");
}

}  // namespace

void bind_landmarks(nb::class_<Kernels>& kernels) {
    kernels
        .def("landmark_update", &landmark_update, "stream"_a, nb::kw_only(), "most_rows"_a, "blocks"_a,
             "k_cache"_a, "v_cache"_a, "capacity"_a, "k_mean"_a, "v_mean"_a, "start"_a, "length"_a,
             "block_size"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0, "In place. At most `most_rows` lie between `start` and `length`.")
        .def("subquadratic_attention", &subquadratic_attention, "stream"_a, nb::kw_only(), "n"_a, "slots"_a,
             "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "k_mean"_a, "v_mean"_a, "global_rows"_a,
             "length"_a, "window"_a, "block_size"_a, "strides"_a, "count_bias"_a, "o"_a, "pages"_a = 0,
             "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "`slots` is the number of global rows.");
}

}  // namespace h2o::python
