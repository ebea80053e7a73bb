// Attention in bfloat16 by AMX, where the machine or this program's stand-in has tiles. Vectors round the
// same numbers, and are tested against float64; tiles differ from them in the order of sums, and in what that
// makes of weights.
#include "amx_stand_in.h"
#include "isa.h"
#include "support.h"
#include "x86/processor.h"

namespace h2o::test {
namespace {

class AmxAttention : public testing::Test {
  protected:
    void SetUp() override {
        if (!h2o_cpu_supports("avx512", H2O_BFLOAT16) || !has_amx(kAmxBFloat16)) {
            GTEST_SKIP() << "no AMX here, or no AVX-512 with bfloat16 beside it";
        }
    }
    // A stand-in tells whether tiles were released.
    void TearDown() override { EXPECT_FALSE(stand_in::thread.configured); }
};

// Fills o, m, l and sums by a call with a context of each, and compares.
class Both {
  public:
    Both(const h2o_shape& shape, int64_t n, int64_t sums)
        : shape_(shape),
          o_(static_cast<size_t>(n * shape.query_heads * values()), NAN),
          m_(static_cast<size_t>(n * shape.query_heads), -1e30f),
          l_(m_.size(), 0.0f),
          sums_(static_cast<size_t>(sums), 0.0f) {}

    int64_t values() const { return shape_.value_size == 0 ? shape_.head_size : shape_.value_size; }

    template <class Call>
    void compare(const Call& call, const std::string& what) {
        Floats found[2][4];
        for (const int tiles : {0, 1}) {
            Floats o = o_, m = m_, l = l_, sums = sums_;
            const Context context = make(3, tiles == 1 ? "amx" : "avx512", H2O_BFLOAT16);
            ASSERT_EQ(call(context.get(), o.data(), m.data(), l.data(), sums.data()), H2O_OK) << what;
            Floats* const out = found[tiles];
            out[0] = o, out[1] = m, out[2] = l, out[3] = sums;
        }
        for (size_t part = 0; part < 4; ++part) {
            const Floats &vectors = found[0][part], &tiles = found[1][part];
            for (size_t i = 0; i < tiles.size(); ++i) {
                const float bound = part == 0 ? 2e-3f : 2e-5f * std::max(1.0f, std::abs(vectors[i]));
                ASSERT_NEAR(tiles[i], vectors[i], bound) << what << ", part " << part << " at " << i;
            }
        }
    }

  private:
    h2o_shape shape_;
    Floats o_, m_, l_, sums_;
};

h2o_shape shape_of(int heads, int group, int d, int values = 0, int window = 0, float softcap = 0.0f) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(d));
    return {heads * group, heads, heads, d, scale, H2O_F32, values, window, softcap};
}

Floats numbers(int64_t count, uint32_t seed) {
    std::mt19937 draw(seed);
    std::normal_distribution<float> normal;
    Floats made;
    for (int64_t i = 0; i < count; ++i) made.push_back(normal(draw));
    return made;
}

TEST_F(AmxAttention, IsChosenHere) {
    EXPECT_TRUE(amx_bfloat16_is_right());
    EXPECT_STREQ(h2o_cpu_isa(make(1, nullptr).get()), "amx");
    EXPECT_EQ(h2o_cpu_fastest_precision(), H2O_BFLOAT16);
    EXPECT_TRUE(h2o_cpu_supports("amx", H2O_FLOAT32));
}

// Sizes of keys that fill tiles, that steps divide, and that they do not; values likewise; rows of one, two
// and three vectors; numbers of keys that leave 1 to 31 for the last tile; more than a block of keys.
TEST_F(AmxAttention, InsideChunks) {
    const int sizes[][2] = {{64, 0}, {8, 0}, {24, 12}, {40, 20}, {72, 0}, {88, 36}, {136, 60}, {128, 128}};
    uint32_t seed = 0;
    for (const auto& [d, values] : sizes) {
        for (const int64_t chunk : {17, 33, 46, 95, 130, d == 64 ? 300 : 31}) {
            const int64_t n = chunk + 21, dv = values == 0 ? d : values;
            const h2o_shape shape = shape_of(2, d == 64 ? 3 : 1, d, values, 0, d == 40 ? 20.0f : 0.0f);
            const Floats q = numbers(n * shape.query_heads * d, ++seed), k = numbers(n * 2 * d, ++seed);
            const Floats v = numbers(n * 2 * dv, ++seed);
            const bool sums = chunk == 46;
            Both both(shape, n, sums ? 2 * n : 0);
            both.compare(
                [&](h2o_cpu* context, float* o, float* m, float* l, float* colsum) {
                    return h2o_cpu_chunked_intra_attention(context, &shape, n, chunk, q.data(), k.data(),
                                                           v.data(), o, m, l, sums ? colsum : nullptr);
                },
                "d " + std::to_string(d) + ", chunks of " + std::to_string(chunk));
        }
    }
}

// Keys of a cache in blocks, with a window that skips panels; values that are the first numbers of keys.
TEST_F(AmxAttention, OverACache) {
    for (const int window : {0, 203}) {
        for (const int64_t length : {300, 1131}) {
            const int64_t n = 70;
            const h2o_shape shape = shape_of(1, 3, 64, 40, window);
            const Floats q = numbers(n * 3 * 64, 91), k = numbers(length * 64, 92);
            const h2o_kv kv = cache_of(k.data(), k.data(), length);
            Both both(shape, n, 0);
            both.compare(
                [&](h2o_cpu* context, float* o, float*, float*, float*) {
                    return h2o_cpu_cached_attention(context, &shape, n, q.data(), &kv, length, o);
                },
                "length " + std::to_string(length) + ", window " + std::to_string(window));
        }
    }
}

// A state in and out, keys by index; then sums over rows alone, for which there are no values.
TEST_F(AmxAttention, ToMemory) {
    const Shape shape{2, 2, 64, H2O_F32};
    const h2o_shape c = shape.c();
    const int64_t n = 90, cap = 500, slots = 77;
    const Floats q = numbers(n * 4 * 64, 93), k = numbers(cap * 2 * 64, 94), v = numbers(cap * 2 * 64, 95);
    const Floats keys = numbers(n * 2 * 64, 96);
    const h2o_kv kv = cache_of(k.data(), v.data(), cap);
    const std::vector<int32_t> memory = random_memory(shape, slots, cap, 97);
    Both fused(c, n, 2 * (slots + n));
    fused.compare(
        [&](h2o_cpu* context, float* o, float* m, float* l, float* colsum) {
            h2o_cpu_chunked_intra_attention(context, &c, n, n, q.data(), keys.data(), keys.data(), o, m, l,
                                            nullptr);
            return h2o_cpu_memory_fused_attention(context, &c, n, slots, q.data(), &kv, memory.data(), o, m,
                                                  l, colsum);
        },
        "memory");
    Both scores(c, 1, 2 * (slots + n));
    scores.compare(
        [&](h2o_cpu* context, float* o, float*, float*, float* sums) {
            std::fill(o, o + 4 * 64, 0.0f);
            return h2o_cpu_candidate_score(context, &c, 50, n, slots, q.data(), keys.data(), &kv,
                                           memory.data(), sums, sums + 2 * slots);
        },
        "candidates");
}

}  // namespace
}  // namespace h2o::test
