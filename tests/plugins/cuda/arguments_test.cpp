// What a wrong argument gives: a status, never a launch.

#include "cases.h"

namespace test {
namespace {

// A caller sizes its workspace for the largest call it will make: every smaller one must need no more.
void test_workspaces_grow() {
    for (const int group : {1, 3, 4, 32})
        for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {
            const h2o_shape s = {2 * group, 2, 2, 64, 1, dtype, 0, 0, 0};
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

#ifdef H2O_EMULATED
// What every operator with a workspace asks for on a device with so many multiprocessors.
std::vector<size_t> workspaces_on(const char* multiprocessors) {
    setenv("H2O_EMULATION_MULTIPROCESSORS", multiprocessors, 1);
    std::vector<size_t> found;
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32})
        for (const int n : {1, 40, 700}) {
            const h2o_shape s = {8, 2, 2, 64, 1, dtype, 0, 0, 0};
            for (const size_t bytes :
                 {h2o_cuda_memory_attention_workspace(&s, n, 100),
                  h2o_cuda_candidate_score_workspace(&s, 16, n, 100),
                  h2o_cuda_cached_attention_workspace(&s, n, 1 << 14),
                  h2o_cuda_query_select_workspace(&s, n, 16, 1, 0, 1 << 14),
                  h2o_cuda_page_select_workspace(&s, n), h2o_cuda_page_attention_workspace(&s, 16, n)}) {
                EXPECT(bytes > 0);
                found.push_back(bytes);
            }
        }
    unsetenv("H2O_EMULATION_MULTIPROCESSORS");
    return found;
}

// An engine keeps the sizes of the GPU that it was built on.
void test_workspaces_are_those_of_any_device() {
    EXPECT(workspaces_on("1") == workspaces_on("512"));
    const h2o_shape s = {8, 2, 2, 64, 1, H2O_F16, 0, 0, 0};
    constexpr int kCapacity = 1 << 10;
    for (const int n : {1, 40}) {
        setenv("H2O_EMULATION_MULTIPROCESSORS", "1", 1);
        const size_t bytes = h2o_cuda_cached_attention_workspace(&s, n, kCapacity);
        setenv("H2O_EMULATION_MULTIPROCESSORS", "512", 1);
        Buffer cache(size_t(kCapacity) * 2 * 64 * 2, false), length(8, false),
            o(size_t(n) * 8 * 64 * 2, true), parts(bytes, true);
        const int64_t all = kCapacity;
        std::memcpy(length.host().data(), &all, 8);
        for (Buffer* buffer : {&cache, &length, &o, &parts}) buffer->reset();
        const h2o_kv kv = cache_of(cache.device(), cache.device(), kCapacity);
        EXPECT(h2o_cuda_cached_attention(nullptr, &s, n, cache.device(), &kv, length.device<int64_t>(),
                                         o.device(), parts.device(), bytes) == H2O_OK);
    }
    unsetenv("H2O_EMULATION_MULTIPROCESSORS");
}

// One token's keys are cut into as many parts as the device runs blocks at once, not one more. Every part
// leaves its state in the workspace.
void test_parts_of_one_token() {
    constexpr int kProcessors = 8, kCapacity = 1 << 13;
    for (const int d : {64, 96, 128}) {
        const size_t shared = size_t(16 + 64 + 64) * d * 2;  // a tile of rows, of keys and of values
        const int blocks = static_cast<int>(emulator::shared_bytes_of_a_multiprocessor() / (shared + 1024));
        const h2o_shape s = {1, 1, 1, d, 1, H2O_F16, 0, 0, 0};
        const size_t bytes = h2o_cuda_cached_attention_workspace(&s, 1, kCapacity);
        Buffer cache(size_t(kCapacity) * d * 2, false), length(8, false), o(size_t(d) * 2, true),
            parts(bytes, true);
        const int64_t all = kCapacity;
        std::memcpy(length.host().data(), &all, 8);
        for (Buffer* buffer : {&cache, &length, &o, &parts}) buffer->reset();
        const h2o_kv kv = cache_of(cache.device(), cache.device(), kCapacity);
        EXPECT(h2o_cuda_cached_attention(nullptr, &s, 1, cache.device(), &kv, length.device<int64_t>(),
                                         o.device(), parts.device(), bytes) == H2O_OK);
        int written = 0;
        for (const float x : parts.values<float>()) written += !std::isnan(x);
        EXPECT(written == kProcessors * blocks * (d + 2));
    }
}
#endif

void test_steps(const h2o_shape& shape, Buffer& memory) {
    void* p = memory.device();
    int64_t* integers = memory.device<int64_t>();
    const h2o_kv kv = cache_of(p, p, 8);
    EXPECT(h2o_cuda_cache_append(nullptr, nullptr, 1, p, p, integers, 0, &kv) == H2O_BAD_ARGUMENT);
    const h2o_kv apart = cache_of(p, memory.device<char>() + 4096, 8);  // with values of its own
    EXPECT(h2o_cuda_cache_append(nullptr, &shape, 1, p, nullptr, integers, 0, &apart) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_cache_append(nullptr, &shape, 9, p, p, nullptr, 0, &kv) == H2O_BAD_ARGUMENT);
    uint32_t* counts = memory.device<uint32_t>();
    const h2o_kv long_kv = cache_of(p, memory.device<char>() + 4096, 4096);
    const auto step = [&](const void* v, uint32_t* arrivals, size_t bytes) {
        return h2o_cuda_step_attention(nullptr, &shape, p, p, v, &long_kv, integers, p, arrivals, p, bytes);
    };
    EXPECT(step(nullptr, counts, 1 << 16) == H2O_BAD_ARGUMENT);
    EXPECT(step(p, nullptr, 1 << 16) == H2O_BAD_ARGUMENT);
    EXPECT(step(p, counts, 256) == H2O_OUT_OF_WORKSPACE);
    const int64_t values[H2O_CUDA_MAX_INTEGERS + 1] = {};
    for (const int count : {-1, 0, H2O_CUDA_MAX_INTEGERS + 1})
        EXPECT(h2o_cuda_write_integers(nullptr, count, values, integers) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_write_integers(nullptr, 1, nullptr, integers) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_write_integers(nullptr, 1, values, nullptr) == H2O_BAD_ARGUMENT);
}

// Every operator that is given a cache: one that is incomplete, and one that no kernel here reads.
void test_caches(const h2o_shape& shape, Buffer& memory) {
    void* p = memory.device();
    float* f = memory.device<float>();
    int32_t* rows = memory.device<int32_t>();
    int64_t* integers = memory.device<int64_t>();
    const h2o_cuda_state state = {p, f, f};
    const size_t bytes = 1 << 16;
    const auto refused = [&](const h2o_kv* kv, h2o_status status) {
        EXPECT(h2o_cuda_memory_gather(nullptr, &shape, 1, kv, rows, p, p) == status);
        EXPECT(h2o_cuda_memory_fused_attention(nullptr, &shape, 1, 1, p, kv, rows, &state, &state, nullptr, p,
                                               bytes) == status);
        if (!kv || kv->v || !kv->k)  // votes need no values
            EXPECT(h2o_cuda_candidate_score(nullptr, &shape, 1, 1, 1, p, p, kv, rows, f, f, p, bytes) ==
                   status);
        EXPECT(h2o_cuda_cached_attention(nullptr, &shape, 1, p, kv, integers, p, p, bytes) == status);
        EXPECT(h2o_cuda_step_attention(nullptr, &shape, p, p, p, kv, integers, p, memory.device<uint32_t>(),
                                       p, bytes) == status);
        EXPECT(h2o_cuda_cache_append(nullptr, &shape, 1, p, p, integers, 0, kv) == status);
    };
    const h2o_kv no_rows = cache_of(p, p, 0), no_keys = cache_of(nullptr, p, 8),
                 no_values = cache_of(p, nullptr, 8), too_long = cache_of(p, p, int64_t{1} << 31);
    for (const h2o_kv* kv : {static_cast<const h2o_kv*>(nullptr), &no_rows, &no_keys, &no_values})
        refused(kv, H2O_BAD_ARGUMENT);
    h2o_kv paged = cache_of(p, p, 8), scaled = paged, longer = paged, bare = paged;
    paged.pages = rows;
    paged.page_rows = 4;
    scaled.k_scales = f;
    longer.dtype = H2O_F32;
    bare.dtype = H2O_I8;
    for (const h2o_kv& kv : {too_long, paged, longer}) refused(&kv, H2O_UNSUPPORTED);
    for (const h2o_kv& kv : {scaled, bare}) refused(&kv, H2O_BAD_ARGUMENT);
}

}  // namespace

void test_arguments(const Options&) {
    context = "arguments";
    const h2o_shape good = {4, 2, 2, 64, 0.125f, H2O_F16, 0, 0, 0};
    Buffer memory(1 << 16, true);
    memory.reset();
    void* p = memory.device();
    float* f = memory.device<float>();
    const h2o_cuda_state state = {p, f, f};
    const auto intra = [&](const h2o_shape& shape, int n, int chunk) {
        return h2o_cuda_chunked_intra_attention(nullptr, &shape, n, chunk, p, p, p, &state, nullptr);
    };
    const auto with = [&](auto change) {
        h2o_shape shape = good;
        change(shape);
        return intra(shape, 4, 4);
    };
    EXPECT(intra(good, 0, 4) == H2O_BAD_ARGUMENT);
    EXPECT(intra(good, 4, 0) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.query_heads = 3; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.score_heads = 3; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.scale = 0; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.scale = NAN; }) == H2O_BAD_ARGUMENT);
    EXPECT(with([](auto& s) { s.head_size = 584; }) == H2O_UNSUPPORTED);
    EXPECT(with([](auto& s) { s.dtype = static_cast<h2o_dtype>(7); }) == H2O_UNSUPPORTED);
    const h2o_shape many = {256, 1, 1, 64, 1, H2O_F16, 0, 0, 0};
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
    const h2o_kv kv = cache_of(p, p, 4096), short_kv = cache_of(p, p, 4);
    EXPECT(h2o_cuda_memory_fused_attention(nullptr, &good, 300, 100, p, &kv, memory.device<int32_t>(), &state,
                                           &state, f, p, bytes - 1) == H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_memory_fused_attention(nullptr, &good, 300, 100, p, &kv, memory.device<int32_t>(), &state,
                                           &state, f, nullptr, bytes) == H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_candidate_score_gathered(nullptr, &good, 8, 4, 1, p, p, p, f, f, p, 1 << 16) ==
           H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_candidate_score_gathered(nullptr, &good, 2, 4, 1, p, p, p, f, f, p, 16) ==
           H2O_OUT_OF_WORKSPACE);
    test_workspaces_grow();
#ifdef H2O_EMULATED
    test_workspaces_are_those_of_any_device();
#endif
    const size_t decode = h2o_cuda_cached_attention_workspace(&good, 1, 4096);
    EXPECT(decode > 0);
    EXPECT(h2o_cuda_cached_attention(nullptr, &good, 1, p, &kv, memory.device<int64_t>(), p, p, 1024) ==
           H2O_OUT_OF_WORKSPACE);
    EXPECT(h2o_cuda_cached_attention(nullptr, &good, 5, p, &short_kv, memory.device<int64_t>(), p, p,
                                     decode) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_memory_select(nullptr, 1, 64, 8, 4, 4, f, memory.device<int32_t>(),
                                  memory.device<int64_t>(), memory.device<int32_t>()) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_score_update(nullptr, 1, 0, memory.device<int32_t>(), f, 0, f) == H2O_BAD_ARGUMENT);
    const h2o_cuda_next_memory next = {memory.device<int32_t>(), nullptr, nullptr, nullptr};
    int32_t* const set = memory.device<int32_t>() + 64;
    EXPECT(h2o_cuda_memory_step(nullptr, 1, 64, 8, 4, 4, 0, 32, next.memory, f, 0, f, &next) ==
           H2O_BAD_ARGUMENT);  // in place
    EXPECT(h2o_cuda_memory_step(nullptr, 1, 64, 8, 4, 4, 32, 65, set, f, 0, f, &next) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_memory_step(nullptr, 1, 64, 8, 4, 4, 0, 32, set, f, 0, f, nullptr) == H2O_BAD_ARGUMENT);
    EXPECT(h2o_cuda_tiled_memory_attention(nullptr, &good, 8, 0, 4, p, &kv, set, &state, &state) ==
           H2O_BAD_ARGUMENT);
#ifdef H2O_EMULATED
    test_parts_of_one_token();
#endif
    test_steps(good, memory);
    test_caches(good, memory);
}

}  // namespace test
