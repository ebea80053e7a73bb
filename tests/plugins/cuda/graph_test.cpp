// The loop over chunks of Phase 2, and the decode step: the operators in sequence, without the host in
// between. Both are also captured into a CUDA graph; a capture in global mode refuses every allocation and
// synchronisation, so that a capture that succeeds shows there is none.

#include "cases.h"

namespace test {
namespace {

// Everything one layer needs, as the runtime would hold it.
struct Layer {
    h2o_shape s;
    int n, chunk, local, heavy, chunks;
    Numbers q, k, v;
    StateBuffers state;
    Buffer score, ranges, memories, addend;
    h2o::calls::MemoryFusedAttention fused;
    Workspace workspace;

    Layer(const h2o_shape& shape, int n_, int chunk_, int local_, int heavy_, std::mt19937& random)
        : s(shape),
          n(n_),
          chunk(chunk_),
          local(local_),
          heavy(heavy_),
          chunks((n_ + chunk_ - 1) / chunk_),
          q(size_t(n_) * s.query_heads * s.head_size, s.dtype),
          k(size_t(n_) * s.kv_heads * s.head_size, s.dtype),
          v(size_t(n_) * s.kv_heads * s.head_size, s.dtype),
          state(s, n_, true),
          score(size_t(n_) * s.score_heads * 4, true),
          ranges(size_t(chunks) * 16, false),
          memories(size_t(chunks) * s.score_heads * slots() * 4, true),
          addend(size_t(s.score_heads) * slots() * 4, true),
          fused(largest()),
          workspace(fused) {
        for (Numbers* numbers : {&q, &k, &v}) fill_normal(*numbers, s.dtype, 1, random);
        for (int c = 0; c < chunks; ++c) {
            const int64_t range[2] = {int64_t(c) * chunk, std::min<int64_t>(n, int64_t(c + 1) * chunk)};
            std::memcpy(ranges.host().data() + c * 16, range, 16);
        }
        ranges.reset();
    }
    int slots() const { return local + heavy; }
    h2o::calls::MemoryFusedAttention largest() {
        auto call = call_of<h2o::calls::MemoryFusedAttention>(s);
        call.n = chunk, call.M = slots(), call.colsum = addend.device<float>();
        return call;
    }
    int32_t* memory(int c) { return memories.device<int32_t>() + size_t(c) * s.score_heads * slots(); }
    std::vector<Buffer*> outputs() {
        return {&state.o, &state.m, &state.l, &score, &memories, &addend, &workspace};
    }

    h2o_status run(h2o_cuda_stream stream) {
        const h2o_kv kv = cache_of(k, v, n);
        auto intra = call_of<h2o::calls::ChunkedIntraAttention>(s);
        intra.n = n, intra.chunk_size = chunk, intra.colsum = score.device<float>();
        intra.q = q.buffer.device(), intra.k = k.buffer.device(), intra.v = v.buffer.device();
        state.receive(intra);
        h2o::calls::MemorySelect select;
        select.Hs = s.score_heads, select.cap = n, select.local = local, select.M = slots();
        select.score = score.device<float>();
        h2o::calls::ScatterScores scatter;
        scatter.Hs = s.score_heads, scatter.M = slots(), scatter.values = addend.device<float>();
        scatter.add = 1, scatter.score = score.device<float>();
        fused.kv = &kv, fused.cap = n;
        intra.context = select.context = scatter.context = fused.context = stream;
        h2o_status status = h2o::cuda::run(intra);
        for (int c = 0; c + 1 < chunks && status == H2O_OK; ++c) {
            select.Mp = c == 0 ? 0 : slots(), select.memory = c == 0 ? nullptr : memory(c - 1);
            select.chunk_range = ranges.device<int64_t>() + c * 2, select.memory_next = memory(c);
            status = h2o::cuda::run(select);
            if (status != H2O_OK) break;
            const int first = (c + 1) * chunk;
            const size_t at = size_t(first) * s.query_heads;
            fused.n = std::min(chunk, n - first), fused.memory = memory(c);
            fused.q = q.buffer.device<unsigned char>() + at * s.head_size * size_of(s.dtype);
            state.fuse(fused, at);
            status = h2o::cuda::run(fused);
            if (status != H2O_OK) break;
            scatter.memory = memory(c);
            status = h2o::cuda::run(scatter);
        }
        return status;
    }
};

// The result must be the softmax over each row's chunk and the memory that the device chose for it.
void check_loop(const Case& which, Layer& layer) {
    const h2o_shape& s = layer.s;
    const int d = s.head_size, per_head = s.score_heads / s.kv_heads, slots = layer.slots();
    const std::vector<int32_t> memories = layer.memories.values<int32_t>();
    const auto remembered = [&](int c, int set, int j) {
        return memories[(size_t(c) * s.score_heads + set) * slots + j];
    };
    for (int c = 0; c + 1 < layer.chunks; ++c)
        for (int set = 0; set < s.score_heads; ++set)
            for (int j = 0; j < slots; ++j) {
                EXPECT(j == 0 || remembered(c, set, j - 1) < remembered(c, set, j));
                if (j >= layer.heavy) EXPECT(remembered(c, set, j) == (c + 1) * layer.chunk - slots + j);
            }
    for (int c = 0; c < layer.chunks; ++c) {
        const int first = c * layer.chunk, rows = std::min(layer.chunk, layer.n - first);
        const int before = c == 0 ? 0 : slots;
        const auto at = [&](int set, int j) {
            const int position = j < before ? remembered(c - 1, set, j) : first + j - before;
            return (size_t(position) * s.kv_heads + set / per_head) * d;
        };
        const std::vector<double> q(
            &layer.q.exact[size_t(first) * s.query_heads * d],
            &layer.q.exact[size_t(first) * s.query_heads * d] + size_t(rows) * s.query_heads * d);
        const auto reference = [&](Precision precision) {
            return attend(
                s, q, rows, before + rows, [&](int set, int j) { return &layer.k.exact[at(set, j)]; },
                [&](int set, int j) { return &layer.v.exact[at(set, j)]; },
                [&](int row, int j) { return j - before <= row; }, precision);
        };
        const std::vector<double> all = download(layer.state.o, s.dtype);
        const std::vector<double> got(all.begin() + size_t(first) * s.query_heads * d,
                                      all.begin() + size_t(first + rows) * s.query_heads * d);
        compare_to(which, "o of a chunk", got, reference(Precision::kExact).o, reference(yardstick(which)).o);
    }
}

struct Graph {
    cudaStream_t stream = nullptr;
    cudaGraphExec_t exec = nullptr;

    template <class F>
    explicit Graph(F&& enqueue) {
        must(cudaStreamCreate(&stream));
        cudaGraph_t graph = nullptr;
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        const h2o_status status = enqueue(stream);
        must(cudaStreamEndCapture(stream, &graph));
        EXPECT(status == H2O_OK);
        must(cudaGraphInstantiate(&exec, graph, 0));
        must(cudaGraphDestroy(graph));
    }
    ~Graph() {
        cudaGraphExecDestroy(exec);
        cudaStreamDestroy(stream);
    }
    void replay() {
        must(cudaDeviceSynchronize());
        must(cudaGraphLaunch(exec, stream));
        must(cudaStreamSynchronize(stream));
    }
};

void check_loop_graph(Layer& layer) {
    std::vector<std::vector<unsigned char>> eager;
    for (Buffer* b : layer.outputs()) eager.push_back(b->download());
    Graph graph([&](cudaStream_t stream) { return layer.run(stream); });
    for (int replay = 0; replay < 2; ++replay) {
        for (Buffer* b : layer.outputs()) b->reset();
        graph.replay();
        for (size_t i = 0; i < eager.size(); ++i) EXPECT(layer.outputs()[i]->download() == eager[i]);
    }
}

void check_decode_graph(Layer& layer) {
    const h2o_shape& s = layer.s;
    Buffer length(8, false), arrivals(size_t(s.query_heads) * 4, false),
        o(size_t(s.query_heads) * s.head_size * size_of(s.dtype), true);
    length.reset();
    arrivals.reset();  // never again: every step leaves zeros
    const h2o_kv kv = cache_of(layer.k, layer.v, layer.n);
    auto attend = call_of<h2o::calls::CachedAttention>(s, &kv);
    attend.n = 1, attend.q = layer.q.buffer.device();
    auto step = call_of<h2o::calls::StepAttention>(s, &kv);  // its new row is that of the first query
    step.q = step.k = step.v = layer.q.buffer.device(), step.counters = arrivals.device<uint32_t>();
    const auto check = [&](auto call) {
        call.length = length.device<int64_t>(), call.o = o.device();
        Workspace workspace(call);
        const auto run = [&](cudaStream_t stream) {
            call.context = stream;
            return h2o::cuda::run(call);
        };
        Graph graph(run);
        for (const int64_t value : {int64_t(1), int64_t(65), int64_t(layer.n / 2), int64_t(layer.n)}) {
            std::memcpy(length.host().data(), &value, 8);
            const std::vector<Buffer*> all = {&workspace, &length, &o, &layer.k.buffer, &layer.v.buffer};
            for (Buffer* b : all) b->reset();
            EXPECT(run(nullptr) == H2O_OK);
            must(cudaDeviceSynchronize());
            const std::vector<unsigned char> eager = o.download();
            for (Buffer* b : all) b->reset();
            graph.replay();
            EXPECT(o.download() == eager);
        }
    };
    check(attend);
    check(step);
    for (Buffer* b : {&layer.k.buffer, &layer.v.buffer}) b->reset();
}

// A launch that CUDA refuses: a status, and CUDA's own words.
void check_last_error() {
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

void test_graph(const Options& options) {
    std::mt19937 random(options.seed + 5);
    check_last_error();
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32})
        for (const bool per_query : {false, true}) {
            Case c{{4, 2, per_query ? 4 : 2, 64, 0.125f, dtype, 0, 0, 0}, 1};
            name_case("loop", c, "");
            const int chunk = !options.small ? 256 : dtype == H2O_F16 ? 64 : 16;
            Layer layer(c.shape, chunk * 4 - 13, chunk, chunk / 4, chunk / 4, random);
            run_twice(layer.outputs(), [&] { return layer.run(nullptr); });
            check_loop(c, layer);
            check_loop_graph(layer);
            check_decode_graph(layer);
        }
}

}  // namespace test
