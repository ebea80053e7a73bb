// The operators as TensorRT runs them: enqueue only unpacks pointers for the kernels' C interface.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "operator.h"

namespace h2o::trt {
namespace {

size_t no_workspace(const Call&) {
    return 0;
}

const float* floats(const void* p) {
    return static_cast<const float*>(p);
}
const int32_t* ints(const void* p) {
    return static_cast<const int32_t*>(p);
}
const int64_t* longs(const void* p) {
    return static_cast<const int64_t*>(p);
}
float* floats(void* p) {
    return static_cast<float*>(p);
}

// States are read-only inputs of the kernels' interface, which has one type for states that go in and out.
h2o_cuda_state state_in(const void* o, const void* m, const void* l) {
    return {const_cast<void*>(o), const_cast<float*>(floats(m)), const_cast<float*>(floats(l))};
}
h2o_cuda_state state_out(void* o, void* m, void* l) {
    return {o, floats(m), floats(l)};
}

// The caches of a node, whose rows lie as they come.
h2o_kv kv_of(const Call& c, const void* k_cache, const void* v_cache) {
    h2o_kv kv{};
    kv.k = const_cast<void*>(k_cache);
    kv.v = const_cast<void*>(v_cache);
    kv.rows = c[kRows];
    kv.dtype = c.shape.dtype;
    return kv;
}

h2o_status chunked_intra_attention(const Call& c, const void* const* in, void* const* out, void*, size_t,
                                   cudaStream_t stream) {
    const h2o_cuda_state state = state_out(out[0], out[1], out[2]);
    return h2o_cuda_chunked_intra_attention(stream, &c.shape, c[kTokens], c.attributes[0].integer, in[0],
                                            in[1], in[2], &state, floats(out[3]));
}

h2o_status memory_gather(const Call& c, const void* const* in, void* const* out, void*, size_t,
                         cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[0], in[1]);
    return h2o_cuda_memory_gather(stream, &c.shape, c[kSlots], &kv, ints(in[2]), out[0], out[1]);
}

size_t memory_workspace(const Call& c) {
    return h2o_cuda_memory_attention_workspace(&c.shape, c[kTokens], c[kSlots]);
}

h2o_status memory_attention(const Call& c, const void* const* in, void* const* out, void* workspace,
                            size_t bytes, cudaStream_t stream) {
    const h2o_cuda_state state = state_out(out[0], out[1], out[2]);
    return h2o_cuda_memory_attention(stream, &c.shape, c[kTokens], c[kSlots], in[0], in[1], in[2], &state,
                                     floats(out[3]), workspace, bytes);
}

h2o_status online_softmax_fusion(const Call& c, const void* const* in, void* const* out, void*, size_t,
                                 cudaStream_t stream) {
    const h2o_cuda_state a = state_in(in[0], in[1], in[2]), b = state_in(in[3], in[4], in[5]);
    const h2o_cuda_state fused = state_out(out[0], out[1], out[2]);
    return h2o_cuda_online_softmax_fusion(stream, &c.shape, c[kTokens], &a, &b, &fused);
}

h2o_status memory_fused_attention(const Call& c, const void* const* in, void* const* out, void* workspace,
                                  size_t bytes, cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[1], in[2]);
    const h2o_cuda_state intra = state_in(in[4], in[5], in[6]);
    const h2o_cuda_state fused = {out[0], nullptr, nullptr};
    return h2o_cuda_memory_fused_attention(stream, &c.shape, c[kTokens], c[kSlots], in[0], &kv, ints(in[3]),
                                           &intra, &fused, floats(out[1]), workspace, bytes);
}

size_t candidate_workspace(const Call& c) {
    return h2o_cuda_candidate_score_workspace(&c.shape, c[kWindow], c[kTokens], c[kSlots]);
}

h2o_status candidate_score(const Call& c, const void* const* in, void* const* out, void* workspace,
                           size_t bytes, cudaStream_t stream) {
    return h2o_cuda_candidate_score_gathered(stream, &c.shape, c[kWindow], c[kTokens], c[kSlots], in[0],
                                             in[1], in[2], floats(out[0]), floats(out[1]), workspace, bytes);
}

h2o_status memory_select(const Call& c, const void* const* in, void* const* out, void*, size_t,
                         cudaStream_t stream) {
    return h2o_cuda_memory_select(stream, c[kScoreHeads], c[kRows], c[kPrevious], c.attributes[0].integer,
                                  c.attributes[1].integer, c.attributes[2].integer, floats(in[0]),
                                  ints(in[1]), longs(in[2]), static_cast<int32_t*>(out[0]));
}

// Its attributes as they stand in the signature; the first is the scale.
int32_t integer(const Call& c, size_t index) {
    return c.attributes[index].integer;
}

// Without lists it looks at all rows, which takes more than lists do: a profile may reach from one to the
// other.
size_t query_workspace(const Call& c) {
    const auto bytes = [&](int32_t listed) {
        return h2o_cuda_query_select_workspace(&c.shape, c[kTokens], integer(c, 1), integer(c, 2), listed,
                                               c[kRows]);
    };
    return std::max(bytes(0), bytes(c[kPrevious]));
}

h2o_status query_select(const Call& c, const void* const* in, void* const* out, void* workspace, size_t bytes,
                        cudaStream_t stream) {
    const int32_t tile = integer(c, 1), share = integer(c, 3);
    const bool fit = c[kTiles] == (c[kTokens] + tile - 1) / tile;
    if (!fit || (c[kPrevious] > 0 && c[kLists] < (c[kTiles] + share - 1) / share)) return H2O_BAD_ARGUMENT;
    const h2o_kv kv = kv_of(c, in[1], nullptr);
    return h2o_cuda_query_select(stream, &c.shape, c[kTokens], tile, integer(c, 2), share, integer(c, 4),
                                 c[kPrevious], integer(c, 5), integer(c, 6), integer(c, 7), in[0], &kv,
                                 ints(in[2]), longs(in[3]), static_cast<int32_t*>(out[0]), workspace, bytes);
}

size_t cached_workspace(const Call& c) {
    return h2o_cuda_cached_attention_workspace(&c.shape, c[kTokens], c[kRows]);
}

h2o_status cached_attention(const Call& c, const void* const* in, void* const* out, void* workspace,
                            size_t bytes, cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[1], in[2]);
    return h2o_cuda_cached_attention(stream, &c.shape, c[kTokens], in[0], &kv, longs(in[3]), out[0],
                                     workspace, bytes);
}

h2o_status landmark_update(const Call& c, const void* const* in, void* const* out, void*, size_t,
                           cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[0], in[1]);
    return h2o_cuda_landmark_update(stream, &c.shape, &kv, longs(in[4]), longs(in[5]), c[kRows],
                                    c.attributes[0].integer, c[kBlocks], floats(in[2]), floats(in[3]),
                                    floats(out[0]), floats(out[1]));
}

h2o_status subquadratic_attention(const Call& c, const void* const* in, void* const* out, void*, size_t,
                                  cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[1], in[2]);
    const h2o_subquadratic pattern = h2o_subquadratic_of(c.attributes[0].integer, c.attributes[1].integer,
                                                         c.attributes[2].integer, c.attributes[3].integer);
    return h2o_cuda_subquadratic_attention(stream, &c.shape, &pattern, c[kTokens], in[0], &kv, longs(in[6]),
                                           floats(in[3]), floats(in[4]), c[kSlots], ints(in[5]), out[0]);
}

size_t line_select_workspace(const Call& c) {
    return h2o_cuda_vertical_slash_select_workspace(&c.shape, c[kTokens], c[kRows]);
}

h2o_status vertical_slash_select(const Call& c, const void* const* in, void* const* out, void* workspace,
                                 size_t bytes, cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[1], nullptr);
    return h2o_cuda_vertical_slash_select(stream, &c.shape, c[kTokens], in[0], &kv, longs(in[2]), c[kSlots],
                                          c[kDiagonals], c.attributes[3].integer, c.attributes[4].integer,
                                          static_cast<int32_t*>(out[0]), static_cast<int32_t*>(out[1]),
                                          workspace, bytes);
}

size_t line_workspace(const Call& c) {
    return h2o_cuda_vertical_slash_attention_workspace(&c.shape, c[kTokens], c[kRows], c[kDiagonals]);
}

h2o_status vertical_slash_attention(const Call& c, const void* const* in, void* const* out, void* workspace,
                                    size_t bytes, cudaStream_t stream) {
    const h2o_kv kv = kv_of(c, in[1], in[2]);
    return h2o_cuda_vertical_slash_attention(stream, &c.shape, c[kTokens], in[0], &kv, longs(in[5]),
                                             c[kSlots], ints(in[3]), c[kDiagonals], ints(in[4]), out[0],
                                             workspace, bytes);
}

h2o_status block_product(const Call& c, const void* const* in, void* const* out, void*, size_t,
                         cudaStream_t stream) {
    return h2o_cuda_block_product(stream, c.shape.dtype, c[kTokens], c[kInputs], c[kOutputs], in[0],
                                  ints(in[1]), in[2], out[0]);
}

bool voters_are_of_the_chunk(const Sizes& s) {
    return s[kWindow] <= s[kTokens];
}
bool inputs_are_in_blocks(const Sizes& s) {
    return s[kInputs] == 32 * int64_t{s[kInputBlocks]};
}
bool rows_are_in_the_cache(const Sizes& s) {
    return s[kTokens] <= s[kRows];
}

// Of every signature.
constexpr struct Kernel {
    const char* name;
    decltype(Operator::workspace) workspace;
    decltype(Operator::enqueue) enqueue;
    decltype(Operator::fits) fits = nullptr;
} kernels[] = {
    {"ChunkedIntraAttention", no_workspace, chunked_intra_attention},
    {"MemoryGather", no_workspace, memory_gather},
    {"MemoryAttention", memory_workspace, memory_attention},
    {"OnlineSoftmaxFusion", no_workspace, online_softmax_fusion},
    {"MemoryFusedAttention", memory_workspace, memory_fused_attention},
    {"CandidateScore", candidate_workspace, candidate_score, voters_are_of_the_chunk},
    {"MemorySelect", no_workspace, memory_select},
    {"QuerySelect", query_workspace, query_select},
    {"CachedAttention", cached_workspace, cached_attention, rows_are_in_the_cache},
    {"LandmarkUpdate", no_workspace, landmark_update},
    {"SubquadraticAttention", no_workspace, subquadratic_attention, rows_are_in_the_cache},
    {"VerticalSlashSelect", line_select_workspace, vertical_slash_select, rows_are_in_the_cache},
    {"VerticalSlashAttention", line_workspace, vertical_slash_attention, rows_are_in_the_cache},
    {"BlockProduct", no_workspace, block_product, inputs_are_in_blocks},
};

Operator complete(const Signature& signature) {
    for (const Kernel& kernel : kernels)
        if (std::strcmp(kernel.name, signature.name) == 0)
            return {signature, kernel.workspace, kernel.enqueue, kernel.fits};
    throw std::logic_error(std::string(signature.name) + " has no kernel");
}

}  // namespace

const std::vector<Operator>& operators() {
    static const std::vector<Operator> all = [] {
        std::vector<Operator> made;
        for (const Signature& signature : signatures()) made.push_back(complete(signature));
        return made;
    }();
    return all;
}

}  // namespace h2o::trt
