// Values of another size than keys, and values that are the first numbers of keys. Arrays end where the last
// number does, so that a sanitizer finds what reads or writes behind it.
#include "support.h"

namespace h2o::test {
namespace {

struct Sizes {
    int32_t query_heads, kv_heads, d, dv;
    bool latent;
    h2o_dtype dtype;

    h2o_shape shape() const { return {query_heads, kv_heads, kv_heads, d, 0.3f, dtype, dv, 0, 0}; }
    int64_t value_stride() const { return latent ? d : dv; }
};

class Latent : public EveryIsa {
  protected:
    void round(const Sizes& sizes, int64_t n, int64_t length, uint32_t seed) const {
        SCOPED_TRACE(testing::Message()
                     << sizes.query_heads << "/" << sizes.kv_heads << " heads of " << sizes.d << "/"
                     << sizes.dv << " f16 " << sizes.dtype << " n " << n << " length " << length);
        const auto count = [](int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); };
        const Stored q = Stored::random(sizes.dtype, count(n, sizes.query_heads, sizes.d), seed);
        const Stored k = Stored::random(sizes.dtype, count(length, sizes.kv_heads, sizes.d), seed + 1);
        const Stored apart = Stored::random(sizes.dtype, count(length, sizes.kv_heads, sizes.dv), seed + 2);
        const Stored& v = sizes.latent ? k : apart;
        Stored o(sizes.dtype, count(n, sizes.query_heads, sizes.dv));
        const h2o_shape shape = sizes.shape();
        const h2o_kv kv = cache_of(k, v, length);
        ASSERT_EQ(h2o_cpu_cached_attention(context().get(), &shape, n, q.data(), &kv, length, o.data()),
                  H2O_OK);
        Errors errors;
        for (int64_t token = 0; token < n; ++token)
            for (int64_t head = 0; head < sizes.query_heads; ++head)
                add_errors(sizes, q, k, v, o, token, head, length - n + token + 1, &errors);
        errors.expect_good(sizes.dtype, "o");
    }

    static void add_errors(const Sizes& sizes, const Stored& q, const Stored& k, const Stored& v,
                           const Stored& o, int64_t token, int64_t head, int64_t keys, Errors* errors) {
        const int64_t kv_head = head / (sizes.query_heads / sizes.kv_heads);
        const int64_t row = token * sizes.query_heads + head;
        const auto number = [](const Stored& from, int64_t at) { return from[static_cast<size_t>(at)]; };
        Doubles p, out(static_cast<size_t>(sizes.dv), 0.0);
        double top = -HUGE_VAL, sum = 0.0;
        for (int64_t key = 0; key < keys; ++key) {
            double dot = 0.0;
            for (int64_t c = 0; c < sizes.d; ++c)
                dot +=
                    number(q, row * sizes.d + c) * number(k, (key * sizes.kv_heads + kv_head) * sizes.d + c);
            p.push_back(dot * static_cast<double>(0.3f));
            top = std::max(top, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (int64_t key = 0; key < keys; ++key)
            for (int64_t c = 0; c < sizes.dv; ++c)
                out[static_cast<size_t>(c)] +=
                    p[static_cast<size_t>(key)] / sum *
                    number(v, (key * sizes.kv_heads + kv_head) * sizes.value_stride() + c);
        for (int64_t c = 0; c < sizes.dv; ++c)
            errors->add(number(o, row * sizes.dv + c), out[static_cast<size_t>(c)]);
    }
};

TEST_P(Latent, AttentionEqualsTheFormula) {
    uint32_t seed = 1;
    for (const h2o_dtype dtype : {H2O_F32, H2O_F16}) {
        for (const Sizes& sizes : {Sizes{4, 4, 24, 12, false, dtype}, Sizes{6, 2, 16, 40, false, dtype},
                                   Sizes{5, 1, 40, 28, true, dtype}, Sizes{20, 1, 40, 28, true, dtype},
                                   Sizes{50, 1, 16, 16, true, dtype}}) {
            for (const int64_t length : {9, 64, 581}) {
                for (const int64_t n : {1, 3, 9}) round(sizes, n, length, seed += 3);
            }
        }
    }
}

TEST_P(Latent, RowsAreAppendedToKeysAlone) {
    const Sizes sizes{4, 1, 40, 32, true, H2O_F32};
    const h2o_shape shape = sizes.shape();
    const Stored fresh = Stored::random(H2O_F32, 3 * 40, 1);
    Stored rows(H2O_F32, 5 * 40);
    const h2o_kv kv = cache_of(rows, rows, 5);
    ASSERT_EQ(h2o_cpu_cache_append(context().get(), &shape, 3, fresh.data(), nullptr, 2, &kv), H2O_OK);
    for (size_t i = 0; i < 3 * 40; ++i) EXPECT_EQ(rows[2 * 40 + i], fresh[i]);
}

H2O_EVERY_ISA(Latent);

}  // namespace
}  // namespace h2o::test
