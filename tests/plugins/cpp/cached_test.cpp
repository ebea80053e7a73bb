#include "support.h"

namespace h2o::test {
namespace {

class Cached : public EveryIsa {
  protected:
    static Stored run(h2o_cpu* context, const Shape& shape, int64_t n, int64_t length, const Stored& q,
                      const Stored& k, const Stored& v, int32_t window = 0) {
        Stored o(shape.dtype, shape.q_size(n));
        h2o_shape c = shape.c();
        c.window = window;
        const int64_t cap = static_cast<int64_t>(k.size()) / (shape.kv_heads * shape.d);
        const h2o_kv kv = cache_of(k, v, cap);
        EXPECT_EQ(h2o_cpu_cached_attention(context, &c, n, q.data(), &kv, length, o.data()), H2O_OK);
        return o;
    }

    void round(const Shape& shape, int64_t n, int64_t length, uint32_t seed, int32_t window = 0) const {
        SCOPED_TRACE(testing::Message()
                     << "group " << shape.group << " d " << shape.d << " f16 " << shape.dtype << " n " << n
                     << " length " << length << " window " << window);
        const Stored q = Stored::random(shape.dtype, shape.q_size(n), seed);
        const Stored k = Stored::random(shape.dtype, shape.k_size(length + 3), seed + 1);
        const Stored v = Stored::random(shape.dtype, shape.k_size(length + 3), seed + 2);
        const Stored o = run(context().get(), shape, n, length, q, k, v, window);
        Errors errors;
        for (int64_t token = 0; token < n; ++token) {
            const int64_t stop = length - n + token + 1;
            const std::vector<int64_t> keys =
                range(window > 0 ? std::max<int64_t>(0, stop - window) : 0, stop);
            for (int64_t head = 0; head < shape.query_heads(); ++head) {
                const Exact exact = attend(shape, q, token, head, k, v, keys);
                const size_t at = static_cast<size_t>((token * shape.query_heads() + head) * shape.d);
                for (size_t i = 0; i < exact.o.size(); ++i) errors.add(o[at + i], exact.o[i]);
            }
        }
        errors.expect_good(shape.dtype, "o");
    }
};

TEST_P(Cached, OneTokenEqualsTheFormula) {
    uint32_t seed = 1;
    for (int64_t d : {8, 16, 24, 64, 80, 128}) {
        for (int64_t group : {1, 3, 8}) {
            for (h2o_dtype dtype : {H2O_F32, H2O_F16}) {
                for (int64_t length : {1, 7, 530}) round({2, group, d, dtype}, 1, length, seed += 3);
            }
        }
    }
}

TEST_P(Cached, AFewTokens) {
    round({2, 2, 64, H2O_F32}, 5, 5, 1);
    round({2, 2, 64, H2O_F32}, 7, 515, 2);  // a run that the first tokens do not see
    round({1, 3, 24, H2O_F16}, 4, 1030, 3);
}

TEST_P(Cached, ManyTokens) {
    round({1, 4, 16, H2O_F32}, 100, 100, 1);
    round({2, 3, 24, H2O_F32}, 40, 700, 2);
    round({1, 16, 8, H2O_F16}, 30, 1100, 3);
    round({1, 2, 8, H2O_F32}, 300, 2100, 4);   // two segments of the cache; the first rows see one of them
    round({1, 1, 8, H2O_F32}, 2100, 2100, 5);  // several ranges of rows
}

TEST_P(Cached, Windows) {
    for (int32_t window : {1, 47, 300, 5000}) {
        round({2, 3, 24, H2O_F32}, 1, 700, 1, window);
        round({2, 2, 16, H2O_F16}, 5, 301, 2, window);
        round({1, 4, 8, H2O_F32}, 150, 450, 3, window);
    }
    round({1, 2, 8, H2O_F32}, 900, 900, 4, 520);  // several ranges of rows
}

// Rows of a prompt, in every precision of the instruction set.
class Prompt : public EveryIsa {
  protected:
    template <class Check>
    void each_precision(const Check& check) const {
        for (h2o_precision precision : {H2O_FLOAT32, H2O_BFLOAT16, H2O_INT16}) {
            SCOPED_TRACE(testing::Message() << "precision " << precision);
            const auto context = [&](int threads) { return make(threads, GetParam().c_str(), precision); };
            if (context(1) != nullptr) check(context, precision);
        }
    }

    // The state of rows first ... end - 1 of a prompt with queries q.
    static State rows(h2o_cpu* context, const Shape& shape, int64_t first, int64_t end, const Stored& q,
                      const Stored& k, const Stored& v) {
        State state(shape, end - first);
        const h2o_shape c = shape.c();
        const h2o_kv kv = cache_of(k, v, static_cast<int64_t>(k.size()) / (shape.kv_heads * shape.d));
        const float* const queries = static_cast<const float*>(q.data()) + shape.q_size(first);
        EXPECT_EQ(h2o_cpu_prompt_attention(context, &c, end - first, queries, &kv, end, state.o.data(),
                                           state.m.data(), state.l.data()),
                  H2O_OK);
        return state;
    }

    static void expect_same(const Shape& shape, const State& some, const State& all, int64_t first) {
        const auto same = [](const float* a, const float* b, size_t count) {
            return std::memcmp(a, b, count * sizeof(float)) == 0;
        };
        const float *const o = static_cast<const float*>(some.o.data()), *const o_all =
                                                                             static_cast<const float*>(
                                                                                 all.o.data());
        EXPECT_TRUE(same(o, o_all + shape.q_size(first), some.o.size()));
        EXPECT_TRUE(same(some.m.data(), all.m.data() + shape.state_size(first), some.m.size()));
        EXPECT_TRUE(same(some.l.data(), all.l.data() + shape.state_size(first), some.l.size()));
    }
};

// A prompt that continues a cache must equal one that is read at once: the rows from `first` on, and all
// rows. With four heads, one thread sweeps the segments of all rows in order, and four threads apart.
TEST_P(Prompt, RowsBesideChangeNoBit) {
    const bool slow = GetParam() == "scalar" || GetParam() == "avx512";  // the stand-in's; AVX2 takes a tenth
    each_precision([slow](const auto& context, h2o_precision precision) {
        for (int64_t kv_heads : {1, 4}) {
            const bool rounded = precision != H2O_FLOAT32;
            if (rounded && kv_heads > 1) continue;
            const Shape shape{kv_heads, 3, 8, H2O_F32};
            const int64_t length = slow || rounded ? 2300 : 4200;
            const Stored q = Stored::random(H2O_F32, shape.q_size(length), 1),
                         k = Stored::random(H2O_F32, shape.k_size(length), 2),
                         v = Stored::random(H2O_F32, shape.k_size(length), 3);
            const State all = rows(context(1).get(), shape, 0, length, q, k, v);
            expect_same(shape, rows(context(4).get(), shape, 0, length, q, k, v), all, 0);
            const std::pair<int64_t, int64_t> parts[] = {{4199, 4200}, {4190, 4200}, {4000, 4100},
                                                         {2000, 2101}, {700, 3300},  {2048, 2050},
                                                         {1023, 1026}, {25, 26},     {0, 1}};
            for (const auto& [first, end] : parts) {
                if (end > length) continue;
                SCOPED_TRACE(testing::Message() << kv_heads << " heads, from row " << first);
                for (int threads : {1, 4})
                    expect_same(shape, rows(context(threads).get(), shape, first, end, q, k, v), all, first);
            }
        }
    });
}

// The first chunk of a prompt, and a prompt that continues inside it.
TEST_P(Prompt, RowsOfTheFirstChunkHaveItsBits) {
    each_precision([](const auto& context, h2o_precision) {
        const Shape shape{1, 3, 16, H2O_F32};
        const int64_t length = 1024;
        const Stored q = Stored::random(H2O_F32, shape.q_size(length), 1),
                     k = Stored::random(H2O_F32, shape.k_size(length), 2),
                     v = Stored::random(H2O_F32, shape.k_size(length), 3);
        State all(shape, length);
        const h2o_shape c = shape.c();
        ASSERT_EQ(
            h2o_cpu_chunked_intra_attention(context(2).get(), &c, length, length, q.data(), k.data(),
                                            v.data(), all.o.data(), all.m.data(), all.l.data(), nullptr),
            H2O_OK);
        for (int64_t first : {1, 25, 511, 600, 1023}) {
            for (int64_t count : {1, 2, 6, 7, 17}) {
                const int64_t end = std::min(length, first + count);
                expect_same(shape, rows(context(2).get(), shape, first, end, q, k, v), all, first);
            }
        }
    });
}

TEST_P(Cached, ScoresFarApart) {
    const Shape shape{1, 1, 64, H2O_F32};
    for (int64_t n : {1, 40}) {
        Stored q = Stored::random(H2O_F32, shape.q_size(n), 3),
               k = Stored::random(H2O_F32, shape.k_size(900), 4);
        for (size_t i = 0; i < q.size(); ++i) q.set(i, std::round(static_cast<float>(q[i]) * 500.0f));
        for (size_t i = 0; i < k.size(); ++i) k.set(i, std::round(static_cast<float>(k[i]) * 4.0f));
        const Stored o = run(context().get(), shape, n, 900, q, k, k);
        Errors errors;
        for (int64_t token = 0; token < n; ++token) {
            const Exact exact = attend(shape, q, token, 0, k, k, range(0, 900 - n + token + 1));
            for (size_t i = 0; i < 64; ++i) errors.add(o[static_cast<size_t>(token) * 64 + i], exact.o[i]);
        }
        errors.expect_good(H2O_F32, "o");
    }
}

H2O_EVERY_ISA(Cached);
H2O_EVERY_ISA(Prompt);

}  // namespace
}  // namespace h2o::test
