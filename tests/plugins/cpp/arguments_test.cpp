// What is refused, and that nothing is written then.
#include "support.h"

namespace h2o::test {
namespace {

class Arguments : public testing::Test {
  protected:
    h2o_status cached(const h2o_shape& shape, int64_t n, int64_t cap, int64_t length) {
        const h2o_kv kv = cache_of(data_.data(), data_.data(), cap);
        return h2o_cpu_cached_attention(context_.get(), &shape, n, data_.data(), &kv, length, out_.data());
    }

    // What the operators that read a cache by index say, two slots a head.
    std::vector<h2o_status> remember(const h2o_kv& kv, const int32_t* memory) {
        const float* in = data_.data();
        float* out = out_.data();
        return {
            h2o_cpu_memory_fused_attention(context_.get(), &good_, 1, 1, 2, in, &kv, memory, out, out + 1024,
                                           out + 2048, nullptr),
            h2o_cpu_candidate_score(context_.get(), &good_, 1, 2, 2, in, in, &kv, memory, out, out + 1024)};
    }

    Context context_ = make(1, nullptr);
    Floats data_ = Floats(4096, 1.0f), out_ = Floats(4096, -7.0f);
    h2o_shape good_{4, 2, 2, 16, 0.25f, H2O_F32, 0, 0, 0.0f};
};

TEST_F(Arguments, Shapes) {
    EXPECT_EQ(cached(good_, 1, 8, 8), H2O_OK);
    h2o_shape bad = good_;
    bad.query_heads = 5;
    EXPECT_EQ(cached(bad, 1, 8, 8), H2O_BAD_ARGUMENT);
    bad = good_;
    bad.score_heads = 3;
    EXPECT_EQ(cached(bad, 1, 8, 8), H2O_BAD_ARGUMENT);
    bad = good_;
    bad.head_size = 12;
    EXPECT_EQ(cached(bad, 1, 8, 8), H2O_UNSUPPORTED);
    bad = good_;
    bad.kv_heads = 0;
    EXPECT_EQ(cached(bad, 1, 8, 8), H2O_BAD_ARGUMENT);
    EXPECT_EQ(h2o_cpu_cached_attention(context_.get(), nullptr, 1, nullptr, nullptr, 8, nullptr),
              H2O_BAD_ARGUMENT);
}

TEST_F(Arguments, Sizes) {
    EXPECT_EQ(cached(good_, 2, 8, 1), H2O_BAD_ARGUMENT);
    EXPECT_EQ(cached(good_, 1, 8, 9), H2O_BAD_ARGUMENT);
    EXPECT_EQ(cached(good_, -1, 8, 8), H2O_BAD_ARGUMENT);
    EXPECT_EQ(cached(good_, 0, 8, 8), H2O_OK);
    EXPECT_EQ(out_, Floats(4096, -7.0f));
}

TEST_F(Arguments, NullPointers) {
    const float* in = data_.data();
    float* out = out_.data();
    const h2o_kv kv = cache_of(in, in, 8), no_keys = cache_of(nullptr, in, 8),
                 no_values = cache_of(in, nullptr, 8);
    EXPECT_EQ(h2o_cpu_cached_attention(context_.get(), &good_, 1, nullptr, &kv, 8, out), H2O_BAD_ARGUMENT);
    EXPECT_EQ(h2o_cpu_cached_attention(nullptr, &good_, 1, in, &kv, 8, out), H2O_BAD_ARGUMENT);
    for (const h2o_kv* bad : {static_cast<const h2o_kv*>(nullptr), &no_keys, &no_values}) {
        EXPECT_EQ(h2o_cpu_cached_attention(context_.get(), &good_, 1, in, bad, 8, out), H2O_BAD_ARGUMENT);
    }
    EXPECT_EQ(
        h2o_cpu_chunked_intra_attention(context_.get(), &good_, 4, 4, in, in, in, out, nullptr, out, nullptr),
        H2O_BAD_ARGUMENT);
    EXPECT_EQ(
        h2o_cpu_chunked_intra_attention(context_.get(), &good_, 4, 0, in, in, in, out, out, out, nullptr),
        H2O_BAD_ARGUMENT);
    EXPECT_EQ(out_, Floats(4096, -7.0f));
}

TEST_F(Arguments, MemoryOutsideTheCache) {
    for (int32_t wrong : {-1, 8}) {
        const int32_t memory[] = {0, 1, 2, wrong};
        for (const h2o_status status : remember(cache_of(data_.data(), data_.data(), 8), memory)) {
            EXPECT_EQ(status, H2O_BAD_ARGUMENT);
        }
    }
    EXPECT_EQ(out_, Floats(4096, -7.0f));
}

TEST_F(Arguments, AFormThatThereIsNotIsRefused) {
    const h2o_kv plain = cache_of(data_.data(), data_.data(), 8);
    const int32_t pages[] = {0, 1}, outside[] = {0, 2}, nowhere[] = {0, -1}, memory[] = {0, 1, 2, 7};
    h2o_kv paged = plain, scaled = plain, bare = plain, short_page = plain, odd_page = plain, unknown = plain;
    paged.pages = outside;
    paged.page_rows = 4;
    paged.pool_rows = 8;
    scaled.v_scales = data_.data();
    bare.dtype = H2O_I8;
    h2o_kv missing = paged;
    missing.pages = nowhere;
    short_page = odd_page = paged;
    short_page.pages = odd_page.pages = pages;
    short_page.page_rows = 2;
    odd_page.page_rows = 6;
    unknown.dtype = static_cast<h2o_dtype>(7);
    const auto refused = [&](const h2o_kv& kv, h2o_status wanted) {
        EXPECT_EQ(h2o_cpu_cached_attention(context_.get(), &good_, 1, data_.data(), &kv, 8, out_.data()),
                  wanted);
        EXPECT_EQ(h2o_cpu_cache_append(context_.get(), &good_, 8, data_.data(), data_.data(), 0, &kv),
                  wanted);
        EXPECT_EQ(remember(kv, memory).back(), wanted);
    };
    for (const h2o_kv& kv : {paged, missing, bare}) refused(kv, H2O_BAD_ARGUMENT);
    for (const h2o_kv& kv : {short_page, odd_page, unknown}) refused(kv, H2O_UNSUPPORTED);
    EXPECT_EQ(h2o_cpu_cached_attention(context_.get(), &good_, 1, data_.data(), &scaled, 8, out_.data()),
              H2O_BAD_ARGUMENT);
    EXPECT_EQ(out_, Floats(4096, -7.0f));
    for (const h2o_status status : remember(plain, memory)) EXPECT_EQ(status, H2O_OK);
}

TEST_F(Arguments, Selection) {
    const int32_t memory[] = {0, 5};
    int32_t out[8] = {};
    auto select = [&](int64_t previous, int64_t start, int64_t stop, int64_t local, int64_t slots) {
        return h2o_cpu_memory_select(context_.get(), 1, 16, data_.data(), previous, memory, start, stop,
                                     local, slots, out);
    };
    EXPECT_EQ(select(2, 6, 10, 2, 4), H2O_OK);
    EXPECT_EQ(select(2, 5, 10, 2, 4), H2O_BAD_ARGUMENT);  // a memory at or after start
    EXPECT_EQ(select(2, 6, 17, 2, 4), H2O_BAD_ARGUMENT);  // beyond the cache
    EXPECT_EQ(select(2, 6, 10, 5, 4), H2O_BAD_ARGUMENT);  // more local than slots
    EXPECT_EQ(select(2, 6, 10, 2, 7), H2O_BAD_ARGUMENT);  // fewer candidates than slots
}

TEST(Context, NamesItsInstructionSet) {
    h2o_cpu* context = nullptr;
    EXPECT_EQ(h2o_cpu_create(1, "mmx", H2O_FLOAT32, &context), H2O_UNSUPPORTED);
    EXPECT_EQ(context, nullptr);
    EXPECT_EQ(h2o_cpu_create(1, nullptr, H2O_FLOAT32, nullptr), H2O_BAD_ARGUMENT);
    for (const std::string& isa : instruction_sets()) {
        const Context holder = make(3, isa.c_str());
        EXPECT_EQ(h2o_cpu_isa(holder.get()), isa);
        EXPECT_EQ(h2o_cpu_threads(holder.get()), 3);
    }
}

}  // namespace
}  // namespace h2o::test
