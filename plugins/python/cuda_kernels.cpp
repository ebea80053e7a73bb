// The operators of h2o_plugins._cuda: addresses and sizes go to the C interface as they are.
#include <nanobind/nanobind.h>

#include <string>

#include "cuda_device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace h2o::python {

void check(h2o_status status, const char* call) {
    const std::string name = call;
    switch (status) {
        case H2O_OK:
            return;
        case H2O_CUDA_ERROR:
            throw CudaError(name + ": " + h2o_cuda_last_error());
        case H2O_UNSUPPORTED:
            throw nb::value_error((name +
                                   ": no kernel for these head sizes or score heads, for pages or what rows "
                                   "are stored as, or for so many tokens")
                                      .c_str());
        case H2O_OUT_OF_WORKSPACE:
            throw nb::value_error((name + ": the workspace is too small").c_str());
        case H2O_BAD_ARGUMENT:
            break;
    }
    throw nb::value_error((name + ": an argument is out of range, or a null pointer").c_str());
}

namespace {

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

h2o_cuda_state state_at(Address o, Address m, Address l) {
    return {at<void>(o), at<float>(m), at<float>(l)};
}

// Bytes of one number that is kept: 1 for int8, 0 for what the model has.
h2o_kv kv_at(h2o_dtype model, Address k_cache, Address v_cache, int64_t capacity, Address pages,
             int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) {
    h2o_kv kv{};
    kv.k = at<void>(k_cache);
    kv.v = at<void>(v_cache);
    kv.rows = kv.pool_rows = capacity;
    kv.pages = at<int32_t>(pages);
    kv.page_rows = page_rows;
    kv.k_scales = at<float>(k_scales);
    kv.v_scales = at<float>(v_scales);
    kv.dtype = item_bytes == 0 ? model : item_bytes == 1 ? H2O_I8 : item_bytes == 2 ? H2O_F16 : H2O_F32;
    return kv;
}

class Kernels {
  public:
    Kernels(int32_t query_heads, int32_t kv_heads, int32_t head_size, float scale, bool half,
            int32_t value_size)
        : shape_{query_heads, kv_heads, kv_heads, head_size, scale, half ? H2O_F16 : H2O_F32, value_size} {
        if (h2o_cuda_memory_attention_workspace(&shape_, 1, 1) == 0)
            throw nb::value_error(
                "Kernels: query_heads must be a multiple of kv_heads, scale above 0, head_size at most 576 "
                "and "
                "value_size 512, and both whole pieces of 16 bytes");
    }

    void chunked_intra_attention(const Stream& stream, int32_t n, int32_t chunk_size, int32_t score_heads,
                                 Address q, Address k, Address v, Address o, Address m, Address l,
                                 Address colsum) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_cuda_state state = state_at(o, m, l);
        check(h2o_cuda_chunked_intra_attention(stream.get(), &shape, n, chunk_size, at<void>(q), at<void>(k),
                                               at<void>(v), &state, at<float>(colsum)),
              "chunked_intra_attention");
    }

    size_t memory_attention_workspace(int32_t n, int32_t slots, int32_t score_heads) const {
        const h2o_cuda_shape shape = scored(score_heads);
        return h2o_cuda_memory_attention_workspace(&shape, n, slots);
    }

    void memory_fused_attention(const Stream& stream, int32_t n, int32_t slots, int32_t score_heads,
                                Address q, Address k_cache, Address v_cache, int64_t capacity, Address memory,
                                Address o, Address m, Address l, Address colsum, Address workspace,
                                size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                                Address v_scales, int32_t item_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_cuda_state state = state_at(o, m, l);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_memory_fused_attention(stream.get(), &shape, n, slots, at<void>(q), &kv,
                                              at<int32_t>(memory), &state, &state, at<float>(colsum),
                                              at<void>(workspace), workspace_bytes),
              "memory_fused_attention");
    }

    void tiled_memory_attention(const Stream& stream, int32_t n, int32_t tile, int32_t slots,
                                int32_t score_heads, Address q, Address k_cache, Address v_cache,
                                int64_t capacity, Address memory, Address o, Address m, Address l,
                                Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                                int32_t item_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_cuda_state state = state_at(o, m, l);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_tiled_memory_attention(stream.get(), &shape, n, tile, slots, at<void>(q), &kv,
                                              at<int32_t>(memory), &state, &state),
              "tiled_memory_attention");
    }

    size_t candidate_score_workspace(int32_t window, int32_t n, int32_t slots, int32_t score_heads) const {
        const h2o_cuda_shape shape = scored(score_heads);
        return h2o_cuda_candidate_score_workspace(&shape, window, n, slots);
    }

    void candidate_score(const Stream& stream, int32_t window, int32_t n, int32_t slots, int32_t score_heads,
                         Address q_window, Address k, Address k_cache, int64_t capacity, Address memory,
                         Address score_mem, Address score_chunk, Address workspace, size_t workspace_bytes,
                         Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                         int32_t item_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_candidate_score(stream.get(), &shape, window, n, slots, at<void>(q_window),
                                       at<void>(k), &kv, at<int32_t>(memory), at<float>(score_mem),
                                       at<float>(score_chunk), at<void>(workspace), workspace_bytes),
              "candidate_score");
    }

    size_t query_select_workspace(int32_t n, int32_t tile, int32_t stride, int32_t slots, int32_t score_heads,
                                  int32_t capacity) const {
        const h2o_cuda_shape shape = scored(score_heads);
        return h2o_cuda_query_select_workspace(&shape, n, tile, stride, slots, capacity);
    }

    void query_select(const Stream& stream, int32_t n, int32_t tile, int32_t stride, int32_t share,
                      int32_t reach, int32_t slots, int32_t score_heads, int32_t local, int32_t heavy,
                      int32_t sink, Address q, Address k_cache, int64_t capacity, Address candidates,
                      Address past, Address memory_next, Address workspace, size_t workspace_bytes,
                      Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                      int32_t item_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_query_select(stream.get(), &shape, n, tile, stride, share, reach, slots, local, heavy,
                                    sink, at<void>(q), &kv, at<int32_t>(candidates), at<int64_t>(past),
                                    at<int32_t>(memory_next), at<void>(workspace), workspace_bytes),
              "query_select");
    }

    size_t cached_attention_workspace(int32_t n, int32_t capacity) const {
        return h2o_cuda_cached_attention_workspace(&shape_, n, capacity);
    }

    void cached_attention(const Stream& stream, int32_t n, Address q, Address k_cache, Address v_cache,
                          int64_t capacity, Address length, Address o, Address workspace,
                          size_t workspace_bytes, Address pages, int32_t page_rows, Address k_scales,
                          Address v_scales, int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_cached_attention(stream.get(), &shape_, n, at<void>(q), &kv, at<int64_t>(length),
                                        at<void>(o), at<void>(workspace), workspace_bytes),
              "cached_attention");
    }

    void step_attention(const Stream& stream, Address q, Address k, Address v, Address k_cache,
                        Address v_cache, int64_t capacity, Address length, Address o, Address arrivals,
                        Address workspace, size_t workspace_bytes, Address pages, int32_t page_rows,
                        Address k_scales, Address v_scales, int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_step_attention(stream.get(), &shape_, at<void>(q), at<void>(k), at<void>(v), &kv,
                                      at<int64_t>(length), at<void>(o), at<uint32_t>(arrivals),
                                      at<void>(workspace), workspace_bytes),
              "step_attention");
    }

    size_t scored_attention_workspace(int32_t capacity) const {
        return h2o_cuda_scored_attention_workspace(&shape_, capacity);
    }

    void scored_attention(const Stream& stream, Address q, Address k_cache, Address v_cache, int64_t capacity,
                          Address length, Address o, Address seen, Address workspace, size_t workspace_bytes,
                          Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                          int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_scored_attention(stream.get(), &shape_, at<void>(q), &kv, at<int64_t>(length),
                                        at<void>(o), at<float>(seen), at<void>(workspace), workspace_bytes),
              "scored_attention");
    }

    void cache_append(const Stream& stream, Address k, Address v, Address k_cache, Address v_cache,
                      int64_t capacity, int32_t n, Address position, int64_t first, Address pages,
                      int32_t page_rows, Address k_scales, Address v_scales, int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_cache_append(stream.get(), &shape_, n, at<void>(k), at<void>(v), at<int64_t>(position),
                                    first, &kv),
              "cache_append");
    }

    void landmark_update(const Stream& stream, int32_t most_rows, int32_t blocks, Address k_cache,
                         Address v_cache, int64_t capacity, Address k_mean, Address v_mean, Address start,
                         Address length, int32_t block_size, Address pages, int32_t page_rows,
                         Address k_scales, Address v_scales, int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_landmark_update(stream.get(), &shape_, &kv, at<int64_t>(start), at<int64_t>(length),
                                       most_rows, block_size, blocks, at<float>(k_mean), at<float>(v_mean),
                                       at<float>(k_mean), at<float>(v_mean)),
              "landmark_update");
    }

    void subquadratic_attention(const Stream& stream, int32_t n, int32_t slots, Address q, Address k_cache,
                                Address v_cache, int64_t capacity, Address k_mean, Address v_mean,
                                Address global_rows, Address length, int64_t window, int64_t block_size,
                                int32_t strides, int32_t count_bias, Address o, Address pages,
                                int32_t page_rows, Address k_scales, Address v_scales,
                                int32_t item_bytes) const {
        const h2o_subquadratic pattern = h2o_subquadratic_of(window, block_size, strides, count_bias);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_subquadratic_attention(stream.get(), &shape_, &pattern, n, at<void>(q), &kv,
                                              at<int64_t>(length), at<float>(k_mean), at<float>(v_mean),
                                              slots, at<int32_t>(global_rows), at<void>(o)),
              "subquadratic_attention");
    }

    void page_bounds(const Stream& stream, int32_t most_rows, int32_t blocks, Address k_cache,
                     int64_t capacity, Address k_min, Address k_max, Address start, Address length,
                     int32_t page_size, Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                     int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_page_bounds(stream.get(), &shape_, &kv, at<int64_t>(start), at<int64_t>(length),
                                   most_rows, page_size, blocks, at<float>(k_min), at<float>(k_max),
                                   at<float>(k_min), at<float>(k_max)),
              "page_bounds");
    }

    size_t page_select_workspace(int32_t blocks, int32_t score_heads) const {
        const h2o_cuda_shape shape = scored(score_heads);
        return h2o_cuda_page_select_workspace(&shape, blocks);
    }

    void page_select(const Stream& stream, int32_t blocks, Address q, Address k_min, Address k_max,
                     Address length, int32_t page_size, int32_t budget, int32_t score_heads,
                     Address page_list, Address workspace, size_t workspace_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        check(h2o_cuda_page_select(stream.get(), &shape, at<void>(q), at<int64_t>(length), page_size, blocks,
                                   at<float>(k_min), at<float>(k_max), budget, at<int32_t>(page_list),
                                   at<void>(workspace), workspace_bytes),
              "page_select");
    }

    void page_attention(const Stream& stream, int32_t slots, int32_t score_heads, Address q, Address k_cache,
                        Address v_cache, int64_t capacity, Address page_list, Address length,
                        int32_t page_size, Address o, Address pages, int32_t page_rows, Address k_scales,
                        Address v_scales, int32_t item_bytes) const {
        const h2o_cuda_shape shape = scored(score_heads);
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_page_attention(stream.get(), &shape, at<void>(q), &kv, at<int64_t>(length), page_size,
                                      slots, at<int32_t>(page_list), at<void>(o)),
              "page_attention");
    }

    size_t vertical_slash_select_workspace(int32_t n, int32_t capacity) const {
        return h2o_cuda_vertical_slash_select_workspace(&shape_, n, capacity);
    }

    void vertical_slash_select(const Stream& stream, int32_t n, Address q, Address k_cache, int64_t capacity,
                               Address length, int32_t vertical, int32_t slash, int32_t sink, int32_t near,
                               Address columns, Address distances, Address workspace, size_t workspace_bytes,
                               Address pages, int32_t page_rows, Address k_scales, Address v_scales,
                               int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, 0, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(h2o_cuda_vertical_slash_select(stream.get(), &shape_, n, at<void>(q), &kv, at<int64_t>(length),
                                             vertical, slash, sink, near, at<int32_t>(columns),
                                             at<int32_t>(distances), at<void>(workspace), workspace_bytes),
              "vertical_slash_select");
    }

    size_t vertical_slash_attention_workspace(int32_t n, int32_t capacity, int32_t slash) const {
        return h2o_cuda_vertical_slash_attention_workspace(&shape_, n, capacity, slash);
    }

    void vertical_slash_attention(const Stream& stream, int32_t n, Address q, Address k_cache,
                                  Address v_cache, int64_t capacity, int32_t vertical, Address columns,
                                  int32_t slash, Address distances, Address length, Address o,
                                  Address workspace, size_t workspace_bytes, Address pages, int32_t page_rows,
                                  Address k_scales, Address v_scales, int32_t item_bytes) const {
        const h2o_kv kv =
            kv_at(shape_.dtype, k_cache, v_cache, capacity, pages, page_rows, k_scales, v_scales, item_bytes);
        check(
            h2o_cuda_vertical_slash_attention(stream.get(), &shape_, n, at<void>(q), &kv, at<int64_t>(length),
                                              vertical, at<int32_t>(columns), slash, at<int32_t>(distances),
                                              at<void>(o), at<void>(workspace), workspace_bytes),
            "vertical_slash_attention");
    }

  private:
    h2o_cuda_shape scored(int32_t heads) const {
        h2o_cuda_shape shape = shape_;
        shape.score_heads = heads;
        return shape;
    }

    h2o_cuda_shape shape_;
};

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

void bind_kernels(nb::module_& module) {
    nb::class_<Kernels>(
        module, "Kernels",
        "One model shape's operators. `score_heads` are Hkv or Hq; an address of 0 is a null pointer.\n\n"
        "ValueError: an argument that the kernels refuse; CudaError: a launch that failed.")
        .def(nb::init<int32_t, int32_t, int32_t, float, bool, int32_t>(), nb::kw_only(), "query_heads"_a,
             "kv_heads"_a, "head_size"_a, "scale"_a, "half"_a, "value_size"_a = 0)
        .def("chunked_intra_attention", &Kernels::chunked_intra_attention, "stream"_a, nb::kw_only(), "n"_a,
             "chunk_size"_a, "score_heads"_a, "q"_a, "k"_a, "v"_a, "o"_a, "m"_a, "l"_a, "colsum"_a)
        .def("memory_attention_workspace", &Kernels::memory_attention_workspace, "n"_a, "slots"_a,
             "score_heads"_a)
        .def("memory_fused_attention", &Kernels::memory_fused_attention, "stream"_a, nb::kw_only(), "n"_a,
             "slots"_a, "score_heads"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "memory"_a, "o"_a,
             "m"_a, "l"_a, "colsum"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "In place: o, m, l are the intra state and become the fused one.")
        .def("tiled_memory_attention", &Kernels::tiled_memory_attention, "stream"_a, nb::kw_only(), "n"_a,
             "tile"_a, "slots"_a, "score_heads"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "memory"_a,
             "o"_a, "m"_a, "l"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0,
             "The same of tiles of rows, with a memory each: memory [tiles, Hs, slots]. One launch.")
        .def("candidate_score_workspace", &Kernels::candidate_score_workspace, "window"_a, "n"_a, "slots"_a,
             "score_heads"_a)
        .def("candidate_score", &Kernels::candidate_score, "stream"_a, nb::kw_only(), "window"_a, "n"_a,
             "slots"_a, "score_heads"_a, "q_window"_a, "k"_a, "k_cache"_a, "capacity"_a, "memory"_a,
             "score_mem"_a, "score_chunk"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0,
             "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0)
        .def("query_select_workspace", &Kernels::query_select_workspace, nb::kw_only(), "n"_a, "tile"_a,
             "stride"_a, "slots"_a, "score_heads"_a, "capacity"_a)
        .def("query_select", &Kernels::query_select, "stream"_a, nb::kw_only(), "n"_a, "tile"_a, "stride"_a,
             "share"_a, "reach"_a, "slots"_a, "score_heads"_a, "local"_a, "heavy"_a, "sink"_a, "q"_a,
             "k_cache"_a, "capacity"_a, "candidates"_a, "past"_a, "memory_next"_a, "workspace"_a,
             "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0)
        .def("cached_attention_workspace", &Kernels::cached_attention_workspace, "n"_a, "capacity"_a)
        .def("cached_attention", &Kernels::cached_attention, "stream"_a, nb::kw_only(), "n"_a, "q"_a,
             "k_cache"_a, "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "workspace"_a, "workspace_bytes"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0)
        .def("step_attention", &Kernels::step_attention, "stream"_a, nb::kw_only(), "q"_a, "k"_a, "v"_a,
             "k_cache"_a, "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "arrivals"_a, "workspace"_a,
             "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0,
             "Cache row `length` - 1 becomes k and v, and one row attends to all up to it. `arrivals` are "
             "uint32 [query heads], zeros that every call leaves as zeros.")
        .def("scored_attention_workspace", &Kernels::scored_attention_workspace, "capacity"_a)
        .def("scored_attention", &Kernels::scored_attention, "stream"_a, nb::kw_only(), "q"_a, "k_cache"_a,
             "v_cache"_a, "capacity"_a, "length"_a, "o"_a, "seen"_a, "workspace"_a, "workspace_bytes"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "Attention of one row, the last, and each row's probability, summed over the query heads of a "
             "key.")
        .def(
            "cache_append", &Kernels::cache_append, "stream"_a, nb::kw_only(), "k"_a, "v"_a, "k_cache"_a,
            "v_cache"_a, "capacity"_a, "n"_a = 1, "position"_a = 0, "first"_a = 0, "pages"_a = 0,
            "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
            "Cache rows from `first` on, or from `position` on, an int64 on the device, become k and v, each "
            "[n, Hkv, d], as the cache stores them.")
        .def("landmark_update", &Kernels::landmark_update, "stream"_a, nb::kw_only(), "most_rows"_a,
             "blocks"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "k_mean"_a, "v_mean"_a, "start"_a,
             "length"_a, "block_size"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0, "In place. At most `most_rows` lie between `start` and `length`.")
        .def("subquadratic_attention", &Kernels::subquadratic_attention, "stream"_a, nb::kw_only(), "n"_a,
             "slots"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "k_mean"_a, "v_mean"_a,
             "global_rows"_a, "length"_a, "window"_a, "block_size"_a, "strides"_a, "count_bias"_a, "o"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "`slots` is the number of global rows.")
        .def("page_bounds", &Kernels::page_bounds, "stream"_a, nb::kw_only(), "most_rows"_a, "blocks"_a,
             "k_cache"_a, "capacity"_a, "k_min"_a, "k_max"_a, "start"_a, "length"_a, "page_size"_a,
             "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "In place. At most `most_rows` lie between `start` and `length`.")
        .def("page_select_workspace", &Kernels::page_select_workspace, "blocks"_a, "score_heads"_a)
        .def("page_select", &Kernels::page_select, "stream"_a, nb::kw_only(), "blocks"_a, "q"_a, "k_min"_a,
             "k_max"_a, "length"_a, "page_size"_a, "budget"_a, "score_heads"_a, "page_list"_a, "workspace"_a,
             "workspace_bytes"_a)
        .def("page_attention", &Kernels::page_attention, "stream"_a, nb::kw_only(), "slots"_a,
             "score_heads"_a, "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "page_list"_a, "length"_a,
             "page_size"_a, "o"_a, "pages"_a = 0, "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0,
             "item_bytes"_a = 0, "`slots` is the length of a list of pages.")
        .def("vertical_slash_select_workspace", &Kernels::vertical_slash_select_workspace, "n"_a,
             "capacity"_a)
        .def("vertical_slash_select", &Kernels::vertical_slash_select, "stream"_a, nb::kw_only(), "n"_a,
             "q"_a, "k_cache"_a, "capacity"_a, "length"_a, "vertical"_a, "slash"_a, "sink"_a, "near"_a,
             "columns"_a, "distances"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0, "page_rows"_a = 0,
             "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "columns [Hq, vertical] and distances [Hq, slash].")
        .def("vertical_slash_attention_workspace", &Kernels::vertical_slash_attention_workspace, "n"_a,
             "capacity"_a, "slash"_a)
        .def("vertical_slash_attention", &Kernels::vertical_slash_attention, "stream"_a, nb::kw_only(), "n"_a,
             "q"_a, "k_cache"_a, "v_cache"_a, "capacity"_a, "vertical"_a, "columns"_a, "slash"_a,
             "distances"_a, "length"_a, "o"_a, "workspace"_a, "workspace_bytes"_a, "pages"_a = 0,
             "page_rows"_a = 0, "k_scales"_a = 0, "v_scales"_a = 0, "item_bytes"_a = 0,
             "columns [Hq, vertical] and distances [Hq, slash].");
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
