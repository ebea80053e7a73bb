// Rows at the end of a cache of 131,072 and of 1,048,576 tokens, where elements and bytes count beyond 2^31
// and 2^32. The same rows lie at the beginning of a short cache, and both must give the same bytes.

#include "cases.h"

namespace test {
namespace {

constexpr int kNear = 64, kPage = 16, kHeads = 32, kD = 128;

// Device memory without a copy on the host. The emulation only reserves so much, and it reads as zeros.
class Reserved {
  public:
    explicit Reserved(size_t bytes) {
        if (cudaMalloc(&pointer_, bytes) != cudaSuccess) pointer_ = nullptr;
    }
    ~Reserved() { cudaFree(pointer_); }
    Reserved(const Reserved&) = delete;
    Reserved& operator=(const Reserved&) = delete;

    unsigned char* at(size_t byte) { return static_cast<unsigned char*>(pointer_) + byte; }
    explicit operator bool() const { return pointer_ != nullptr; }

  private:
    void* pointer_ = nullptr;
};

struct Far {
    int rows;
    h2o_shape shape = {kHeads, kHeads, kHeads, kD, 0.125f, H2O_F16, kD, 0, 0};
    size_t row_bytes = size_t(kHeads) * kD * 2;
    Numbers q, near_k, near_v;
    Reserved far_k, far_v;
    h2o_kv near, far;

    Far(int tokens, std::mt19937& random)
        : rows(tokens),
          q(8 * kHeads * kD, H2O_F16),
          near_k(kNear * kHeads * kD, H2O_F16),
          near_v(kNear * kHeads * kD, H2O_F16),
          far_k(row_bytes * size_t(tokens)),
          far_v(row_bytes * size_t(tokens)) {
        for (Numbers* one : {&q, &near_k, &near_v}) fill_normal(*one, H2O_F16, 1, random);
        near = cache_of(near_k, near_v, kNear);
        far = cache_of(far_k.at(0), far_v.at(0), tokens);
        if (!far_k || !far_v) return;
        const size_t first = row_bytes * size_t(tokens - kNear), bytes = row_bytes * kNear;
        must(cudaMemcpy(far_k.at(first), near_k.buffer.device(), bytes, cudaMemcpyDeviceToDevice));
        must(cudaMemcpy(far_v.at(first), near_v.buffer.device(), bytes, cudaMemcpyDeviceToDevice));
    }
};

// Runs `call(cache, first row, first page, output)` near and far.
template <class F>
void same_near_and_far(const char* what, Far& f, size_t bytes, F&& call) {
    char name[80];
    std::snprintf(name, sizeof name, "far %s rows=%d", what, f.rows);
    context = name;
    std::vector<unsigned char> found[2];
    for (const bool far : {false, true}) {
        Buffer out(bytes, true);
        out.reset();
        const int first = far ? f.rows - kNear : 0;
        EXPECT(call(far ? f.far : f.near, first, out) == H2O_OK);
        must(cudaDeviceSynchronize());
        found[far] = out.download();
    }
    EXPECT(found[0] == found[1]);
}

Buffer& filled(Buffer& buffer, const std::vector<int32_t>& values) {
    fill_ints(buffer, values);
    return buffer;
}

void test_rows_of(Far& f) {
    constexpr int n = 8, slots = 16, states = n * kHeads;
    std::vector<float> ones(states, 1);
    Buffer o_intra(size_t(states) * kD * 2, false), m(states * 4, false), l(states * 4, false);
    std::memcpy(l.host().data(), ones.data(), states * 4);
    for (Buffer* one : {&o_intra, &m, &l}) one->reset();
    same_near_and_far("memory", f, size_t(states) * kD * 2, [&](const h2o_kv& kv, int first, Buffer& out) {
        std::vector<int32_t> rows(slots * kHeads);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = first + int(i * 7 % slots) * 4 + int(i % 3);
        Buffer memory(rows.size() * 4, false), colsum(rows.size() * 4, true);
        auto fused = call_of<h2o::calls::MemoryFusedAttention>(f.shape, &kv);
        fused.n = n, fused.M = slots, fused.q = f.q.buffer.device(), fused.o = out.device();
        fused.memory = filled(memory, rows).device<int32_t>(), fused.colsum = colsum.device<float>();
        fused.o_intra = o_intra.device(), fused.m_intra = m.device<float>(),
        fused.l_intra = l.device<float>();
        Workspace workspace(fused);
        const h2o_status status = h2o::cuda::run(fused);
        must(cudaDeviceSynchronize());
        return status;
    });
    same_near_and_far("pages", f, kHeads * kD * 2, [&](const h2o_kv& kv, int first, Buffer& out) {
        std::vector<int32_t> pages(2 * kHeads);
        for (size_t i = 0; i < pages.size(); ++i) pages[i] = first / kPage + 1 + int(i % 2) * 2;
        Buffer list(pages.size() * 4, false), length(8, false);
        const int64_t rows = first + kNear - 3;
        std::memcpy(length.host().data(), &rows, 8);
        length.reset();
        auto attention = call_of<h2o::calls::PageAttention>(f.shape, &kv);
        attention.q = f.q.buffer.device(), attention.length = length.device<int64_t>();
        attention.page_size = kPage, attention.M = 2, attention.o = out.device();
        attention.page_list = filled(list, pages).device<int32_t>();
        Workspace parts(attention);
        const h2o_status status = h2o::cuda::run(attention);
        must(cudaDeviceSynchronize());
        return status;
    });
    same_near_and_far("votes", f, 2 * kHeads * 4, [&](const h2o_kv& kv, int first, Buffer& out) {
        std::vector<int32_t> rows(kHeads * 24);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = first + int(i % 24) * 2;
        Buffer list(rows.size() * 4, false), past(8, false), chosen(kHeads * 3 * 4, true);
        const int64_t end = first + kNear - n;
        std::memcpy(past.host().data(), &end, 8);
        past.reset();
        h2o::calls::QuerySelect vote;
        vote.shape = f.shape;
        vote.n = vote.tile = n, vote.cap = f.rows, vote.t = vote.stride = 1;
        vote.Mp = 24, vote.Hl = kHeads, vote.M = 3, vote.reach = 2, vote.local = 1, vote.heavy = 2;
        Reserved workspace(h2o::cuda::workspace(vote));
        vote.workspace = workspace.at(0), vote.workspace_bytes = h2o::cuda::workspace(vote);
        vote.q = f.q.buffer.device(), vote.kv = &kv, vote.past = vote.first = past.device<int64_t>();
        vote.candidates = filled(list, rows).device<int32_t>();
        vote.memory_next = chosen.device<int32_t>();
        const h2o_status status = h2o::cuda::run(vote);
        must(cudaDeviceSynchronize());
        std::vector<int32_t> heavy;
        const std::vector<int32_t> all = chosen.values<int32_t>();
        for (size_t i = 0; i < all.size(); ++i)
            if (i % 3 < 2) heavy.push_back(all[i] - first);
        must(cudaMemcpy(out.device(), heavy.data(), heavy.size() * 4, cudaMemcpyHostToDevice));
        return status;
    });
}

void test_appended_to(Far& f) {
    same_near_and_far("append", f, 2 * f.row_bytes, [&](const h2o_kv& kv, int first, Buffer& out) {
        Buffer at(8, false);
        const int64_t last = first + kNear - 1;
        std::memcpy(at.host().data(), &last, 8);
        at.reset();
        auto append = call_of<h2o::calls::CacheAppend>(f.shape, &kv);
        append.n = 1, append.k = append.v = f.q.buffer.device(), append.at = at.device<int64_t>();
        const h2o_status status = h2o::cuda::run(append);
        must(cudaDeviceSynchronize());
        auto* const to = out.device<unsigned char>();
        for (const void* rows : {kv.k, kv.v})
            must(cudaMemcpy(to + (rows == kv.k ? 0 : f.row_bytes),
                            static_cast<const unsigned char*>(rows) + f.row_bytes * size_t(last), f.row_bytes,
                            cudaMemcpyDeviceToDevice));
        return status;
    });
}

}  // namespace

void test_far(const Options& options) {
#ifdef H2O_EMULATED
    const char* const before = std::getenv("H2O_EMULATION_MEMORY_MB");
    const std::string restored = before ? before : "4096";
    setenv("H2O_EMULATION_MEMORY_MB", "65536", 1);
#endif
    std::mt19937 random(options.seed + 11);
    for (const int rows : {1 << 17, 1 << 20}) {
        Far f(rows, random);
        if (!f.far_k || !f.far_v) {
            std::printf("far: no memory for %d rows, not run\n", rows);
            continue;
        }
        test_rows_of(f);
        test_appended_to(f);
    }
#ifdef H2O_EMULATED
    setenv("H2O_EMULATION_MEMORY_MB", restored.c_str(), 1);
#endif
}

}  // namespace test
