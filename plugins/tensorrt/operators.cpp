// The operators of ONNX domain h2o, version 1, as TensorRT sees them. Names, order and ranks are those of the
// ONNX functions; enqueue only unpacks pointers for the kernels' C interface.

#include "operator.h"

namespace h2o::trt {
namespace {

using nvinfer1::DimsExprs;
using nvinfer1::IExprBuilder;

constexpr Type T = Type::kModel;
constexpr Type F = Type::kFloat;

void dims(DimsExprs& to, std::initializer_list<const nvinfer1::IDimensionExpr*> sizes) {
    to.nbDims = 0;
    for (const auto* size : sizes) to.d[to.nbDims++] = size;
}

void dims_like(DimsExprs& to, const DimsExprs& from, int32_t rank) {
    to.nbDims = rank;
    for (int32_t i = 0; i < rank; ++i) to.d[i] = from.d[i];
}

bool consistent(const h2o_cuda_shape& s) {
    return s.query_heads > 0 && s.kv_heads > 0 && s.query_heads % s.kv_heads == 0 &&
           (s.score_heads == s.kv_heads || s.score_heads == s.query_heads);
}

// Operators without a scale of their own pass 1, which the kernels do not use.
h2o_cuda_shape shape_with(const Call& call, int32_t query_heads, int32_t kv_heads, int32_t score_heads,
                          int32_t d, float scale) {
    return {query_heads, kv_heads, score_heads, d, scale, call.dtype};
}

size_t no_workspace(const Call&, const h2o_cuda_shape&) {
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

// The caches of a node, [cap, Hkv, d] each, are rows as they lie.
h2o_kv kv_of(const void* k_cache, const void* v_cache, int32_t rows) {
    h2o_kv kv{};
    kv.k = const_cast<void*>(k_cache);
    kv.v = const_cast<void*>(v_cache);
    kv.rows = rows;
    return kv;
}

Operator chunked_intra_attention() {
    return {"ChunkedIntraAttention",
            {{AttributeSpec::kInt, "chunk_size", 1},
             {AttributeSpec::kPositiveFloat, "scale"},
             {AttributeSpec::kInt, "score_heads", 1}},
            {{"q", 3, T}, {"k", 3, T}, {"v", 3, T}},
            {{"o", 3, T}, {"m", 2, F}, {"l", 2, F}, {"colsum", 2, F}},
            [](const Attributes& a, const DimsExprs* in, DimsExprs* out, IExprBuilder& builder) {
                dims_like(out[0], in[0], 3);
                dims_like(out[1], in[0], 2);
                dims_like(out[2], in[0], 2);
                dims(out[3], {in[0].d[0], builder.constant(a[2].integer)});
            },
            [](const Call& c, h2o_cuda_shape& s) {
                s = shape_with(c, c.size(0, 1), c.size(1, 1), c.attributes[2].integer, c.size(0, 2),
                               c.attributes[1].real);
                return consistent(s) && c.size(0, 0) == c.size(1, 0) && c.size(1, 0) == c.size(2, 0);
            },
            no_workspace,
            [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void*, size_t,
               cudaStream_t stream) {
                const h2o_cuda_state state = state_out(out[0], out[1], out[2]);
                return h2o_cuda_chunked_intra_attention(stream, &s, c.size(0, 0), c.attributes[0].integer,
                                                        in[0], in[1], in[2], &state, floats(out[3]));
            }};
}

Operator memory_gather() {
    return {"MemoryGather",
            {},
            {{"k_cache", 3, T}, {"v_cache", 3, T}, {"memory", 2, Type::kInt32}},
            {{"k_mem", 3, T}, {"v_mem", 3, T}},
            [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
                for (int i = 0; i < 2; ++i) dims(out[i], {in[2].d[0], in[2].d[1], in[0].d[2]});
            },
            [](const Call& c, h2o_cuda_shape& s) {
                // Query heads do not show in these inputs: with one set a query head, they are the sets.
                s = shape_with(c, c.size(2, 0), c.size(0, 1), c.size(2, 0), c.size(0, 2), 1);
                return consistent(s) && c.size(0, 0) == c.size(1, 0);
            },
            no_workspace,
            [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void*, size_t,
               cudaStream_t stream) {
                const h2o_kv kv = kv_of(in[0], in[1], c.size(0, 0));
                return h2o_cuda_memory_gather(stream, &s, c.size(2, 1), &kv, ints(in[2]), out[0], out[1]);
            }};
}

Operator memory_attention() {
    return {
        "MemoryAttention",
        {{AttributeSpec::kPositiveFloat, "scale"}},
        {{"q", 3, T}, {"k_mem", 3, T}, {"v_mem", 3, T}},
        {{"o", 3, T}, {"m", 2, F}, {"l", 2, F}, {"colsum", 2, F}},
        [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
            dims_like(out[0], in[0], 3);
            dims_like(out[1], in[0], 2);
            dims_like(out[2], in[0], 2);
            dims_like(out[3], in[1], 2);
        },
        [](const Call& c, h2o_cuda_shape& s) {
            // Gathered keys lie by set already: to the kernel each set is a key/value head.
            s = shape_with(c, c.size(0, 1), c.size(1, 0), c.size(1, 0), c.size(0, 2), c.attributes[0].real);
            return consistent(s) && c.size(1, 1) == c.size(2, 1);
        },
        [](const Call& c, const h2o_cuda_shape& s) {
            return h2o_cuda_memory_attention_workspace(&s, c.size(0, 0), c.size(1, 1));
        },
        [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void* workspace,
           size_t bytes, cudaStream_t stream) {
            const h2o_cuda_state state = state_out(out[0], out[1], out[2]);
            return h2o_cuda_memory_attention(stream, &s, c.size(0, 0), c.size(1, 1), in[0], in[1], in[2],
                                             &state, floats(out[3]), workspace, bytes);
        }};
}

Operator online_softmax_fusion() {
    return {"OnlineSoftmaxFusion",
            {},
            {{"o_a", 3, T}, {"m_a", 2, F}, {"l_a", 2, F}, {"o_b", 3, T}, {"m_b", 2, F}, {"l_b", 2, F}},
            {{"o", 3, T}, {"m", 2, F}, {"l", 2, F}},
            [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
                dims_like(out[0], in[0], 3);
                dims_like(out[1], in[0], 2);
                dims_like(out[2], in[0], 2);
            },
            [](const Call& c, h2o_cuda_shape& s) {
                const int32_t heads = c.size(0, 1);
                s = shape_with(c, heads, heads, heads, c.size(0, 2), 1);
                return consistent(s) && c.size(0, 0) == c.size(3, 0) && heads == c.size(3, 1);
            },
            no_workspace,
            [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void*, size_t,
               cudaStream_t stream) {
                const h2o_cuda_state a = state_in(in[0], in[1], in[2]), b = state_in(in[3], in[4], in[5]);
                const h2o_cuda_state fused = state_out(out[0], out[1], out[2]);
                return h2o_cuda_online_softmax_fusion(stream, &s, c.size(0, 0), &a, &b, &fused);
            }};
}

Operator candidate_score() {
    return {
        "CandidateScore",
        {{AttributeSpec::kPositiveFloat, "scale"}},
        {{"q_window", 3, T}, {"k", 3, T}, {"k_mem", 3, T}},
        {{"score_mem", 2, F}, {"score_chunk", 2, F}},
        [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
            dims_like(out[0], in[2], 2);
            dims(out[1], {in[1].d[0], in[2].d[0]});
        },
        [](const Call& c, h2o_cuda_shape& s) {
            s = shape_with(c, c.size(0, 1), c.size(1, 1), c.size(2, 0), c.size(0, 2), c.attributes[0].real);
            return consistent(s) && c.size(0, 0) <= c.size(1, 0);
        },
        [](const Call& c, const h2o_cuda_shape& s) {
            return h2o_cuda_candidate_score_workspace(&s, c.size(0, 0), c.size(1, 0), c.size(2, 1));
        },
        [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void* workspace,
           size_t bytes, cudaStream_t stream) {
            return h2o_cuda_candidate_score_gathered(stream, &s, c.size(0, 0), c.size(1, 0), c.size(2, 1),
                                                     in[0], in[1], in[2], floats(out[0]), floats(out[1]),
                                                     workspace, bytes);
        }};
}

Operator memory_select() {
    return {"MemorySelect",
            {{AttributeSpec::kInt, "local", 0},
             {AttributeSpec::kInt, "heavy", 0},
             {AttributeSpec::kInt, "sink", 0}},
            {{"score", 2, F}, {"memory", 2, Type::kInt32}, {"chunk_range", 1, Type::kInt64}},
            {{"memory_next", 2, Type::kInt32}},
            [](const Attributes& a, const DimsExprs* in, DimsExprs* out, IExprBuilder& builder) {
                dims(out[0], {in[0].d[1], builder.constant(int64_t(a[0].integer) + a[1].integer)});
            },
            [](const Call& c, h2o_cuda_shape& s) {
                const int32_t heads = c.size(0, 1);
                s = shape_with(c, heads, heads, heads, 64, 1);
                return consistent(s) && c.size(1, 0) == heads && c.size(2, 0) == 2;
            },
            no_workspace,
            [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void*, size_t,
               cudaStream_t stream) {
                return h2o_cuda_memory_select(stream, s.score_heads, c.size(1, 1), c.attributes[0].integer,
                                              c.attributes[1].integer, c.attributes[2].integer, floats(in[0]),
                                              ints(in[1]), longs(in[2]), static_cast<int32_t*>(out[0]));
            }};
}

Operator cached_attention() {
    return {
        "CachedAttention",
        {{AttributeSpec::kPositiveFloat, "scale"}},
        {{"q", 3, T}, {"k_cache", 3, T}, {"v_cache", 3, T}, {"length", 0, Type::kInt64}},
        {{"o", 3, T}},
        [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
            dims_like(out[0], in[0], 3);
        },
        [](const Call& c, h2o_cuda_shape& s) {
            s = shape_with(c, c.size(0, 1), c.size(1, 1), c.size(1, 1), c.size(0, 2), c.attributes[0].real);
            return consistent(s) && c.size(0, 0) <= c.size(1, 0) && c.size(1, 0) == c.size(2, 0);
        },
        [](const Call& c, const h2o_cuda_shape& s) {
            return h2o_cuda_cached_attention_workspace(&s, c.size(0, 0), c.size(1, 0));
        },
        [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void* workspace,
           size_t bytes, cudaStream_t stream) {
            const h2o_kv kv = kv_of(in[1], in[2], c.size(1, 0));
            return h2o_cuda_cached_attention(stream, &s, c.size(0, 0), in[0], &kv, longs(in[3]), out[0],
                                             workspace, bytes);
        }};
}

Operator memory_fused_attention() {
    return {
        "MemoryFusedAttention",
        {{AttributeSpec::kPositiveFloat, "scale"}},
        {{"q", 3, T},
         {"k_cache", 3, T},
         {"v_cache", 3, T},
         {"memory", 2, Type::kInt32},
         {"o_intra", 3, T},
         {"m_intra", 2, F},
         {"l_intra", 2, F}},
        {{"o", 3, T}, {"colsum", 2, F}},
        [](const Attributes&, const DimsExprs* in, DimsExprs* out, IExprBuilder&) {
            dims_like(out[0], in[0], 3);
            dims_like(out[1], in[3], 2);
        },
        [](const Call& c, h2o_cuda_shape& s) {
            s = shape_with(c, c.size(0, 1), c.size(1, 1), c.size(3, 0), c.size(0, 2), c.attributes[0].real);
            return consistent(s) && c.size(0, 0) == c.size(4, 0) && c.size(1, 0) == c.size(2, 0);
        },
        [](const Call& c, const h2o_cuda_shape& s) {
            return h2o_cuda_memory_attention_workspace(&s, c.size(0, 0), c.size(3, 1));
        },
        [](const Call& c, const h2o_cuda_shape& s, const void* const* in, void* const* out, void* workspace,
           size_t bytes, cudaStream_t stream) {
            const h2o_cuda_state intra = state_in(in[4], in[5], in[6]);
            const h2o_cuda_state fused = {out[0], nullptr, nullptr};
            const h2o_kv kv = kv_of(in[1], in[2], c.size(1, 0));
            return h2o_cuda_memory_fused_attention(stream, &s, c.size(0, 0), c.size(3, 1), in[0], &kv,
                                                   ints(in[3]), &intra, &fused, floats(out[1]), workspace,
                                                   bytes);
        }};
}

}  // namespace

const std::vector<Operator>& operators() {
    static const std::vector<Operator> all = {
        chunked_intra_attention(), memory_gather(), memory_attention(), online_softmax_fusion(),
        candidate_score(),         memory_select(), cached_attention(), memory_fused_attention()};
    return all;
}

}  // namespace h2o::trt
