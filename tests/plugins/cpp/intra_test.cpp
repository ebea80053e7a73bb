#include "support.h"

namespace h2o::test {
namespace {

class Intra : public EveryIsa {
  protected:
    struct Result {
        State state;
        Floats colsum;
    };

    Result run(h2o_cpu* context, const Shape& shape, int64_t n, int64_t S, const Stored& q, const Stored& k,
               const Stored& v, bool sums = true) const {
        Result out{State(shape, n), Floats(static_cast<size_t>(n * shape.score_heads()), -7.0f)};
        const h2o_shape c = shape.c();
        EXPECT_EQ(h2o_cpu_chunked_intra_attention(context, &c, n, S, q.data(), k.data(), v.data(),
                                                  out.state.o.data(), out.state.m.data(), out.state.l.data(),
                                                  sums ? out.colsum.data() : nullptr),
                  H2O_OK);
        return out;
    }

    void check(const Shape& shape, int64_t n, int64_t S, const Stored& q, const Stored& k, const Stored& v,
               const Result& result, bool sums = true) const {
        StateErrors errors;
        Doubles colsum(result.colsum.size());
        for (int64_t token = 0; token < n; ++token) {
            const std::vector<int64_t> keys = range(token / S * S, token + 1);
            for (int64_t head = 0; head < shape.query_heads(); ++head) {
                const Exact exact = attend(shape, q, token, head, k, v, keys);
                errors.add(shape, result.state, token, head, exact);
                const int64_t hs = head / (shape.query_heads() / shape.score_heads());
                for (size_t i = 0; i < keys.size(); ++i) {
                    colsum[static_cast<size_t>(keys[i] * shape.score_heads() + hs)] += exact.p[i];
                }
            }
        }
        errors.expect_good(shape.dtype);
        if (!sums) return;
        Errors sum_errors;
        for (size_t i = 0; i < colsum.size(); ++i)
            sum_errors.add(static_cast<double>(result.colsum[i]), colsum[i]);
        sum_errors.expect_good(H2O_F32, "colsum");
    }

    void round(const Shape& shape, int64_t n, int64_t S, uint32_t seed, bool sums = true) const {
        SCOPED_TRACE(testing::Message() << "kv_heads " << shape.kv_heads << " group " << shape.group << " d "
                                        << shape.d << " f16 " << shape.dtype << " n " << n << " S " << S);
        const Stored q = Stored::random(shape.dtype, shape.q_size(n), seed);
        const Stored k = Stored::random(shape.dtype, shape.k_size(n), seed + 1);
        const Stored v = Stored::random(shape.dtype, shape.k_size(n), seed + 2);
        check(shape, n, S, q, k, v, run(context().get(), shape, n, S, q, k, v, sums), sums);
    }
};

TEST_P(Intra, EqualsTheFormula) {
    uint32_t seed = 1;
    for (int64_t d : {8, 24, 64, 128}) {
        for (int64_t group : {1, 3, 4, 8}) {
            for (h2o_dtype dtype : {H2O_F32, H2O_F16}) {
                for (int64_t n : {1, 37, 70}) round({2, group, d, dtype}, n, 33, seed += 3);
            }
        }
    }
}

TEST_P(Intra, ScoresPerQueryHead) {
    round({2, 3, 32, H2O_F32, true}, 75, 40, 5);
}

TEST_P(Intra, WithoutColumnSumsLongChunksGoInKeyBlocks) {
    round({1, 2, 8, H2O_F32}, 1200, 1100, 7, false);
}

// Scores of whole numbers, which float32 holds exactly, over +-100 and far beyond exp's range.
TEST_P(Intra, ScoresFarApart) {
    const Shape shape{1, 2, 64, H2O_F32};
    const int64_t n = 90;
    for (float size : {9.0f, 40.0f, 4000.0f}) {
        Stored q = Stored::random(H2O_F32, shape.q_size(n), 3),
               k = Stored::random(H2O_F32, shape.k_size(n), 4);
        const Stored v = Stored::random(H2O_F32, shape.k_size(n), 5);
        for (size_t i = 0; i < q.size(); ++i) q.set(i, std::round(static_cast<float>(q[i]) * size));
        for (size_t i = 0; i < k.size(); ++i) k.set(i, std::round(static_cast<float>(k[i]) * 4.0f));
        check(shape, n, n, q, k, v, run(context().get(), shape, n, n, q, k, v));
    }
}

TEST_P(Intra, ASecondCallTakesNoMoreMemory) {
    const Shape shape{2, 2, 16, H2O_F32};
    const Stored q = Stored::random(H2O_F32, shape.q_size(200), 1),
                 k = Stored::random(H2O_F32, shape.k_size(200), 2);
    const Context holder = context();
    run(holder.get(), shape, 200, 64, q, k, k);
    const size_t held = h2o_cpu_scratch_bytes(holder.get());
    EXPECT_GT(held, 0u);
    for (int64_t n : {200, 3, 131}) run(holder.get(), shape, n, 64, q, k, k);
    EXPECT_EQ(h2o_cpu_scratch_bytes(holder.get()), held);
}

H2O_EVERY_ISA(Intra);

}  // namespace
}  // namespace h2o::test
