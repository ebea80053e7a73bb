// Attention inside chunks and to a memory of cache rows.
#include "kernels.h"

namespace h2o::python {

namespace {

void chunked_intra_attention(const Kernels& kernels, const Stream& stream, int32_t n, int32_t chunk_size,
                             int32_t score_heads, Address q, Address k, Address v, Address o, Address m,
                             Address l, Address colsum) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_cuda_state state = state_at(o, m, l);
    check(h2o_cuda_chunked_intra_attention(stream.get(), &shape, n, chunk_size, at<void>(q), at<void>(k),
                                           at<void>(v), &state, at<float>(colsum)),
          "chunked_intra_attention");
}

size_t memory_attention_workspace(const Kernels& kernels, int32_t n, int32_t slots, int32_t score_heads) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    return h2o_cuda_memory_attention_workspace(&shape, n, slots);
}

void memory_fused_attention(const Kernels& kernels, const Stream& stream, int32_t n, int32_t slots,
                            int32_t score_heads, Address q, Address k_cache, Address v_cache,
                            int64_t capacity, Address memory, Address o, Address m, Address l, Address colsum,
                            Address workspace, size_t workspace_bytes, Address pages, int32_t page_rows,
                            Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_cuda_state state = state_at(o, m, l);
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_memory_fused_attention(stream.get(), &shape, n, slots, at<void>(q), &kv,
                                          at<int32_t>(memory), &state, &state, at<float>(colsum),
                                          at<void>(workspace), workspace_bytes),
          "memory_fused_attention");
}

void tiled_memory_attention(const Kernels& kernels, const Stream& stream, int32_t n, int32_t tile,
                            int32_t slots, int32_t score_heads, Address q, Address k_cache, Address v_cache,
                            int64_t capacity, Address memory, Address o, Address m, Address l, Address pages,
                            int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) {
    const h2o_cuda_shape shape = kernels.scored(score_heads);
    const h2o_cuda_state state = state_at(o, m, l);
    const h2o_kv kv =
        kernels.kv_at(k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
    check(h2o_cuda_tiled_memory_attention(stream.get(), &shape, n, tile, slots, at<void>(q), &kv,
                                          at<int32_t>(memory), &state, &state),
          "tiled_memory_attention");
}

}  // namespace

void bind_memory(nb::class_<Kernels>& kernels) {
    kernels
        .def("chunked_intra_attention", &chunked_intra_attention, "stream"_a, nb::kw_only(), "n"_a,
             "chunk_size"_a, "score_heads"_a, "q"_a, "k"_a, "v"_a, "o"_a, "m"_a, "l"_a, "colsum"_a)
        .def("memory_attention_workspace", &memory_attention_workspace, "n"_a, "slots"_a, "score_heads"_a)
        .def("memory_fused_attention", &memory_fused_attention, "stream"_a, nb::kw_only(), "n"_a, "slots"_a,
             "score_heads"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "memory"_a, "o"_a, "m"_a, "l"_a,
             "colsum"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "In place: o, m, l are the intra state and become the fused one.")
        .def("tiled_memory_attention", &tiled_memory_attention, "stream"_a, nb::kw_only(), "n"_a, "tile"_a,
             "slots"_a, "score_heads"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "memory"_a, "o"_a,
             "m"_a, "l"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0,
             "The same of tiles of rows, with a memory each: memory [tiles, Hs, slots]. One launch.");
}

}  // namespace h2o::python
