// What a wrong argument gives: a status, never a launch. tests/plugins/cuda/test_module_operators.py has
// more.

#include "cases.h"

namespace test {
namespace {

// Calls that a workspace is asked for: of n tokens, and rows of a memory set or of a cache.
h2o::calls::MemoryAttention memory_of(const h2o_shape& s, int n, int slots) {
    auto call = call_of<h2o::calls::MemoryAttention>(s);
    call.n = n, call.M = slots;
    return call;
}
h2o::calls::CandidateScore votes_of(const h2o_shape& s, int window, int n, int slots) {
    auto call = call_of<h2o::calls::CandidateScore>(s);
    call.w = window, call.n = n, call.M = slots;
    return call;
}
h2o::calls::CachedAttention cached_of(const h2o_shape& s, int n, int capacity) {
    auto call = call_of<h2o::calls::CachedAttention>(s);
    call.n = n, call.cap = capacity;
    return call;
}

// A caller sizes its workspace for the largest call it will make: every smaller one must need no more.
void test_workspaces_grow() {
    using h2o::cuda::workspace;
    for (const int group : {1, 3, 4, 32})
        for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {
            const h2o_shape s = {2 * group, 2, 2, 64, 1, dtype, 0, 0, 0};
            for (int i = 1; i < 700; ++i) {
                EXPECT(workspace(memory_of(s, i, 100)) <= workspace(memory_of(s, i + 1, 100)));
                EXPECT(workspace(memory_of(s, 100, i)) <= workspace(memory_of(s, 100, i + 1)));
                EXPECT(workspace(votes_of(s, 16, 100, i)) <= workspace(votes_of(s, 16, 100, i + 1)));
                EXPECT(workspace(cached_of(s, i, 5000)) <= workspace(cached_of(s, i + 1, 5000)));
                EXPECT(workspace(cached_of(s, 100, 100 + i * 8)) <=
                       workspace(cached_of(s, 100, 108 + i * 8)));
            }
        }
}

#ifdef H2O_EMULATED
// What every operator with a workspace asks for on a device with so many multiprocessors.
std::vector<size_t> workspaces_on(const char* multiprocessors) {
    using h2o::cuda::workspace;
    setenv("H2O_EMULATION_MULTIPROCESSORS", multiprocessors, 1);
    std::vector<size_t> found;
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32})
        for (const int n : {1, 40, 700}) {
            const h2o_shape s = {8, 2, 2, 64, 1, dtype, 0, 0, 0};
            auto query = call_of<h2o::calls::QuerySelect>(s);
            query.n = n, query.tile = 16, query.stride = 1, query.cap = 1 << 14;
            auto select = call_of<h2o::calls::PageSelect>(s);
            select.Nb = n;
            auto pages = call_of<h2o::calls::PageAttention>(s);
            pages.page_size = 16, pages.M = n;
            for (const size_t bytes : {workspace(memory_of(s, n, 100)), workspace(votes_of(s, 16, n, 100)),
                                       workspace(cached_of(s, n, 1 << 14)), workspace(query),
                                       workspace(select), workspace(pages)}) {
                EXPECT(bytes > 0);
                found.push_back(bytes);
            }
        }
    unsetenv("H2O_EMULATION_MULTIPROCESSORS");
    return found;
}

// The whole cache, whose rows are the queries too.
struct Whole {
    Buffer cache, length{8, false}, o;
    h2o_kv kv;
    h2o::calls::CachedAttention call;
    Workspace parts;

    Whole(const h2o_shape& s, int n, int capacity)
        : cache(size_t(capacity) * s.kv_heads * s.head_size * 2, false),
          o(size_t(n) * s.query_heads * s.head_size * 2, true),
          kv(cache_of(cache.device(), cache.device(), capacity)),
          call(cached_of(s, n, capacity)),
          parts(call) {
        std::memcpy(length.host().data(), &kv.rows, 8);
        for (Buffer* buffer : {&cache, &length, &o, static_cast<Buffer*>(&parts)}) buffer->reset();
        call.q = cache.device(), call.kv = &kv, call.length = length.device<int64_t>(), call.o = o.device();
    }
};

// An engine keeps the sizes of the GPU that it was built on.
void test_workspaces_are_those_of_any_device() {
    EXPECT(workspaces_on("1") == workspaces_on("512"));
    const h2o_shape s = {8, 2, 2, 64, 1, H2O_F16, 0, 0, 0};
    constexpr int kCapacity = 1 << 10;
    for (const int n : {1, 40}) {
        setenv("H2O_EMULATION_MULTIPROCESSORS", "1", 1);
        Whole whole(s, n, kCapacity);
        setenv("H2O_EMULATION_MULTIPROCESSORS", "512", 1);
        EXPECT(h2o::cuda::run(whole.call) == H2O_OK);
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
        Whole whole(s, 1, kCapacity);
        EXPECT(h2o::cuda::run(whole.call) == H2O_OK);
        int written = 0;
        for (const float x : whole.parts.values<float>()) written += !std::isnan(x);
        EXPECT(written == kProcessors * blocks * (d + 2));
    }
}
#endif

// A launch that CUDA refuses: a status, and CUDA's own words.
void test_last_error() {
    context = "last error";
    const h2o_shape s = {1, 1, 1, 64, 0.125f, H2O_F16, 0, 0, 0};
    Buffer memory(1 << 12, true);
    memory.reset();
    void* p = memory.device();
    auto fusion = call_of<h2o::calls::OnlineSoftmaxFusion>(s);
    fusion.n = 1, fusion.o_a = fusion.o_b = fusion.o = p;
    fusion.m_a = fusion.m_b = fusion.l_a = fusion.l_b = memory.device<float>();
    fusion.m = fusion.l = memory.device<float>();
    cudaStream_t capturing = nullptr;
    cudaGraph_t graph = nullptr;
    must(cudaStreamCreate(&capturing));
    must(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal));
    EXPECT(h2o::cuda::run(fusion) == H2O_CUDA_ERROR);
    EXPECT(std::strstr(h2o_cuda_last_error(), "captur") != nullptr);
    EXPECT(cudaStreamEndCapture(capturing, &graph) != cudaSuccess);
    (void)cudaGetLastError();
    EXPECT(h2o::cuda::run(fusion) == H2O_OK);
    EXPECT(std::strstr(h2o_cuda_last_error(), "captur") != nullptr);  // until another call fails
    must(cudaDeviceSynchronize());
    must(cudaStreamDestroy(capturing));
}

}  // namespace

void test_arguments(const Options&) {
    context = "arguments";
    const h2o_shape good = {4, 2, 2, 64, 0.125f, H2O_F16, 0, 0, 0};
    Buffer memory(1 << 16, true);
    memory.reset();
    void* p = memory.device();
    float* f = memory.device<float>();
    const auto intra = [&](const h2o_shape& shape, int n, int chunk, auto... wrong) {
        auto call = call_of<h2o::calls::ChunkedIntraAttention>(shape);
        call.n = n, call.chunk_size = chunk, call.q = call.k = call.v = call.o = p, call.m = call.l = f;
        (wrong(call), ...);
        return h2o::cuda::run(call);
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
    EXPECT(intra({}, 4, 4) == H2O_BAD_ARGUMENT);
    EXPECT(intra(good, 4, 4, [](auto& call) { call.q = nullptr; }) == H2O_BAD_ARGUMENT);
    EXPECT(intra(good, 4, 4, [](auto& call) { call.o = call.m = call.l = nullptr; }) == H2O_BAD_ARGUMENT);

    const size_t bytes = h2o::cuda::workspace(memory_of(good, 300, 100));
    EXPECT(bytes > 0);
    EXPECT(h2o::cuda::workspace(memory_of({}, 300, 100)) == 0);
    const h2o_kv kv = cache_of(p, p, 4096), short_kv = cache_of(p, p, 4);
    auto fused = call_of<h2o::calls::MemoryFusedAttention>(good, &kv);
    fused.n = 300, fused.M = 100, fused.q = p, fused.memory = memory.device<int32_t>();
    fused.o_intra = fused.o = p, fused.m_intra = fused.l_intra = fused.colsum = f;
    for (const auto& [room, size] : {std::pair<void*, size_t>(p, bytes - 1), {nullptr, bytes}}) {
        fused.workspace = room, fused.workspace_bytes = size;
        EXPECT(h2o::cuda::run(fused) == H2O_OUT_OF_WORKSPACE);
    }
    const auto vote = [&](int window, size_t room) {
        auto call = votes_of(good, window, 4, 1);
        call.q_window = call.k = call.k_mem = p, call.score_mem = call.score_chunk = f;
        call.workspace = p, call.workspace_bytes = room;
        return h2o::cuda::run(call);
    };
    EXPECT(vote(8, 1 << 16) == H2O_BAD_ARGUMENT);
    EXPECT(vote(2, 16) == H2O_OUT_OF_WORKSPACE);
    test_workspaces_grow();
#ifdef H2O_EMULATED
    test_workspaces_are_those_of_any_device();
#endif
    const size_t decode = h2o::cuda::workspace(cached_of(good, 1, 4096));
    EXPECT(decode > 0);
    const auto attend = [&](int n, const h2o_kv& rows, size_t room) {
        auto call = call_of<h2o::calls::CachedAttention>(good, &rows);
        call.n = n, call.q = p, call.length = memory.device<int64_t>(), call.o = p;
        call.workspace = p, call.workspace_bytes = room;
        return h2o::cuda::run(call);
    };
    EXPECT(attend(1, kv, 1024) == H2O_OUT_OF_WORKSPACE);
    EXPECT(attend(5, short_kv, decode) == H2O_BAD_ARGUMENT);
    int32_t *const places = memory.device<int32_t>(), *const set = places + 64;
    h2o::calls::MemorySelect select;
    select.Hs = 1, select.cap = 64, select.Mp = 8, select.local = 4, select.M = 8, select.score = f;
    select.memory = select.memory_next = places, select.chunk_range = memory.device<int64_t>();
    EXPECT(h2o::cuda::run(select) == H2O_BAD_ARGUMENT);  // in place
    h2o::calls::ScatterScores scatter;
    scatter.Hs = 1, scatter.M = 0, scatter.memory = places, scatter.values = scatter.score = f;
    scatter.add = 1;
    EXPECT(h2o::cuda::run(scatter) == H2O_BAD_ARGUMENT);
    const auto step = [&](int start, int stop, const int32_t* from, int32_t* to) {
        h2o::calls::MemoryStep call;
        call.Hs = 1, call.cap = 64, call.Mp = 8, call.local = 4, call.M = 8, call.start = start;
        call.stop = stop, call.memory = from, call.values = call.score = f, call.add = 1;
        call.memory_next = to;
        return h2o::cuda::run(call);
    };
    EXPECT(step(0, 32, places, places) == H2O_BAD_ARGUMENT);  // in place
    EXPECT(step(32, 65, set, places) == H2O_BAD_ARGUMENT);
    EXPECT(step(0, 32, set, nullptr) == H2O_BAD_ARGUMENT);
    auto tiled = call_of<h2o::calls::TiledMemoryAttention>(good, &kv);
    tiled.n = 8, tiled.tile = 0, tiled.M = 4, tiled.q = p, tiled.memory = set;
    tiled.o_intra = tiled.o = p, tiled.m_intra = tiled.l_intra = f;
    EXPECT(h2o::cuda::run(tiled) == H2O_BAD_ARGUMENT);
#ifdef H2O_EMULATED
    test_parts_of_one_token();
#endif
    test_last_error();
}

}  // namespace test
