// What a wrong argument gives: a status, never a launch.

#include "cases.h"

namespace test {
namespace {

// A caller sizes its workspace for the largest call it will make: every smaller one must need no more.
void test_workspaces_grow() {
    for (const int group : {1, 3, 4, 32})
        for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {
            const h2o_cuda_shape s = {2 * group, 2, 2, 64, 1, dtype};
            for (int i = 1; i < 700; ++i) {
                EXPECT(h2o_cuda_memory_attention_workspace(&s, i, 100) <=
                       h2o_cuda_memory_attention_workspace(&s, i + 1, 100));
                EXPECT(h2o_cuda_memory_attention_workspace(&s, 100, i) <=
                       h2o_cuda_memory_attention_workspace(&s, 100, i + 1));
                EXPECT(h2o_cuda_candidate_score_workspace(&s, 16, 100, i) <=
                       h2o_cuda_candidate_score_workspace(&s, 16, 100, i + 1));
                EXPECT(h2o_cuda_cached_attention_workspace(&s, i, 5000) <=
                       h2o_cuda_cached_attention_workspace(&s, i + 1, 5000));
                EXPECT(h2o_cuda_cached_attention_workspace(&s, 100, 100 + i * 8) <=
                       h2o_cuda_cached_attention_workspace(&s, 100, 108 + i * 8));
            }
        }
}

void test_steps(const h2o_cuda_shape& shape, Buffer& memory) {
    void* p = memory.device();
    int64_t* integers = memory.device<int64_t>();
    EXPECT(h2o_cuda_cache_append(nullptr, nullptr, p, p, integers, p, p) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_cache_append(nullptr, &shape, p, nullptr, integers, p, p) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_cache_append(nullptr, &shape, p, p, nullptr, p, p) == H2O_BAD_ARGUMENT);
    const int64_t values[H2O_CUDA_MAX_INTEGERS + 1] = {};
    for (const int count : {-1, 0, H2O_CUDA_MAX_INTEGERS + 1})
        EXPECT(h2o_cuda_write_integers(nullptr, count, values, integers) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_write_integers(nullptr, 1, nullptr, integers) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_write_integers(nullptr, 1, values, nullptr) == H2O_BAD_ARGUMENT);
}

}  // namespace

void test_arguments(const Options&) {
    context = "arguments";
    const h2o_cuda_shape good = {4, 2, 2, 64, 0.125f, H2O_F16};
    Buffer memory(1 << 16, true);
    memory.reset();
    void* p = memory.device();
    float* f = memory.device<float>();
    const h2o_cuda_state state = {p, f, f};
    const auto intra = [&](const h2o_cuda_shape& shape, int n, int chunk) {
        return h2o_cuda_chunked_intra_attention(nullptr, &shape, n, chunk, p, p, p, &state, nullptr);
    };
    const auto with = [&](auto change) {
        h2o_cuda_shape shape = good;
        change(shape);
        return intra(shape, 4, 4);
    };
    EXPECT(intra(good, 0, 4) == H2O_BAD_ARGUMENT);
    EXPECT(intra(good, 4, 0) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.query_heads = 3; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.score_heads = 3; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.scale = 0; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.scale = NAN; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.head_size = 48; }) == H2O_UNSUPPORTED);
    EXPECT(with([](auto& s) { s.dtype = static_cast<h2o_dtype>(7); }) == H2O_UNSUPPORTED);
    const h2o_cuda_shape many = {256, 1, 1, 64, 1, H2O_F16};
    EXPECT(intra(many, 1 << 16, 4) == H2O_UNSUPPORTED);
    EXPECT(h2o_cuda_chunked_intra_attention(nullptr, nullptr, 4, 4, p, p, p, &state, nullptr) ==
           H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_chunked_intra_attention(nullptr, &good, 4, 4, nullptr, p, p, &state, nullptr) ==
           H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_chunked_intra_attention(nullptr, &good, 4, 4, p, p, p, nullptr, nullptr) ==
           H2O_BAD_ARGUMENT);

    const size_t bytes = h2o_cuda_memory_attention_workspace(&good, 300, 100);
    EXPECT(bytes > 0);
    EXPECT(h2o_cuda_memory_attention_workspace(nullptr, 300, 100) == 0);
    EXPECT(h2o_cuda_memory_fused_attention(nullptr, &good, 300, 100, p, p, p, memory.device<int32_t>(),
                                           &state, &state, f, p, bytes - 1) == H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_memory_fused_attention(nullptr, &good, 300, 100, p, p, p, memory.device<int32_t>(),
                                           &state, &state, f, nullptr, bytes) == H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_candidate_score(nullptr, &good, 8, 4, 1, p, p, p, nullptr, f, f, p, 1 << 16) ==
           H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_candidate_score(nullptr, &good, 2, 4, 1, p, p, p, nullptr, f, f, p, 16) ==
           H2O_OUT_OF_WORKSPACE);
    test_workspaces_grow();
    const size_t decode = h2o_cuda_cached_attention_workspace(&good, 1, 4096);
    EXPECT(decode > 0);
    EXPECT(h2o_cuda_cached_attention(nullptr, &good, 1, 4096, p, p, p, memory.device<int64_t>(), p, p,
                                     1024) == H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_cached_attention(nullptr, &good, 5, 4, p, p, p, memory.device<int64_t>(), p, p, decode) ==
           H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_memory_select(nullptr, 1, 8, 4, 4, 0, f, memory.device<int32_t>(),
                                  memory.device<int64_t>(), memory.device<int32_t>()) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_score_update(nullptr, 1, 0, memory.device<int32_t>(), f, 0, f) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_score_gather(nullptr, 0, 1, memory.device<int32_t>(), f, f) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_score_gather(nullptr, 1, 1, nullptr, f, f) == H2O_BAD_ARGUMENT);
    test_steps(good, memory);
}

}  // namespace test
