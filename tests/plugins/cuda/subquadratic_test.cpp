// SubquadraticAttention against the pattern's own words, and the landmarks that it reads.

#include <set>

#include "cases.h"

namespace test {
namespace {

struct Pattern {
    int window, block_size;
    bool strides;
    std::vector<int32_t> globals;
};

bool power_of_two(int x) {
    return x > 0 && (x & (x - 1)) == 0;
}

bool sees_token(const Pattern& p, int query, int key) {
    const int distance = query - key;
    const bool global = std::find(p.globals.begin(), p.globals.end(), key) != p.globals.end();
    return distance >= 0 && (distance <= p.window || global || (p.strides && power_of_two(distance)));
}

bool sees_landmark(const Pattern& p, int query, int mark) {
    if (p.block_size == 0) return false;
    const int distance = (query + 1) / p.block_size - 1 - mark;
    return distance == 0 || distance == 1 || (p.strides && power_of_two(distance));
}

void test_pattern(const Case& c, const Pattern& p, int n, int length, std::mt19937& random) {
    const h2o_shape& s = c.shape;
    name_case("subquadratic", c, "n=%d length=%d window=%d block=%d strides=%d", n, length, p.window,
              p.block_size, p.strides);
    const int capacity = length + 5, size = std::max(p.block_size, 1), marks = capacity / size + 1;
    const size_t width = size_t(s.kv_heads) * s.head_size;
    Numbers q(size_t(n) * s.query_heads * s.head_size, s.dtype), k(capacity * width, s.dtype),
        v(capacity * width, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    fill_normal(k, s.dtype, 1, random);
    fill_normal(v, s.dtype, 1, random);
    const h2o_kv kv = cache_of(k, v, capacity);

    // In two calls, of which the second begins inside a block: the same bits as in one.
    Buffer k_mean(marks * width * 4, true), v_mean(marks * width * 4, true), k_once(marks * width * 4, true),
        v_once(marks * width * 4, true);
    Buffer bounds(4 * 8, false);
    const int64_t values[4] = {0, length / 3, length, 0};
    std::memcpy(bounds.host().data(), values, sizeof values);
    bounds.reset();
    const int64_t* at = bounds.device<int64_t>();
    const auto update = [&](int from, int to, Buffer& keys, Buffer& means) {
        EXPECT(h2o_cuda_landmark_update(nullptr, &s, &kv, at + from, at + to, length, size, marks,
                                        keys.device<float>(), means.device<float>(), keys.device<float>(),
                                        means.device<float>()) == H2O_OK);
    };
    for (Buffer* buffer : {&k_mean, &v_mean, &k_once, &v_once}) buffer->reset();
    update(0, 1, k_mean, v_mean);
    update(1, 2, k_mean, v_mean);
    update(0, 2, k_once, v_once);
    must(cudaDeviceSynchronize());
    EXPECT(k_mean.download() == k_once.download() && v_mean.download() == v_once.download());
    const std::vector<double> key_means = download(k_mean, H2O_F32), value_means = download(v_mean, H2O_F32);
    for (int mark = 0; mark < length / size; ++mark) {
        double mean = 0;
        for (int row = 0; row < size; ++row) mean += k.exact[(mark * size + row) * width] / size;
        EXPECT(std::fabs(mean - key_means[mark * width]) < 1e-5);
    }

    Buffer rows(std::max<size_t>(p.globals.size(), 1) * 4, false);
    if (!p.globals.empty()) fill_ints(rows, p.globals);
    Buffer o(q.exact.size() * size_of(s.dtype), true);
    const h2o_subquadratic pattern = h2o_subquadratic_of(p.window, p.block_size, p.strides, 0);
    run_twice({&o}, [&] {
        return h2o_cuda_subquadratic_attention(nullptr, &s, &pattern, n, q.buffer.device(), &kv, at + 2,
                                               k_mean.device<float>(), v_mean.device<float>(),
                                               int(p.globals.size()), rows.device<int32_t>(), o.device());
    });
    const auto either = [&](const std::vector<double>& tokens, const std::vector<double>& means) {
        return [&](int set, int j) {
            const size_t row = j < length ? j : j - length;
            return &(j < length ? tokens : means)[row * width + size_t(set) * s.head_size];
        };
    };
    const auto visible = [&](int i, int j) {
        const int query = length - n + i;
        return j < length ? sees_token(p, query, j) : sees_landmark(p, query, j - length);
    };
    const int keys = length + length / size;
    h2o_shape by_kv = s;
    by_kv.score_heads = s.kv_heads;
    const auto reference = [&](Precision precision) {
        return attend(by_kv, q.exact, n, keys, either(k.exact, key_means), either(v.exact, value_means),
                      visible, precision);
    };
    compare_to(c, "o", download(o, s.dtype), reference(Precision::kExact).o, reference(yardstick(c)).o);
}

}  // namespace

void test_subquadratic(const Options& options) {
    std::mt19937 random(options.seed + 5);
    const Pattern all = {6, 8, true, {0, 9}};
    for (const Case& c : cases(options)) {
        test_pattern(c, all, 7, 61, random);
        test_pattern(c, all, 1, 64, random);
    }
    for (const Case& c : cases_without_tiles()) test_pattern(c, all, 7, 61, random);
    const Case c = cases(options).front();
    test_pattern(c, {6, 0, false, {}}, 20, 40, random);
    test_pattern(c, {0, 1, true, {0}}, 40, 40, random);
    test_pattern(c, {100, 10, false, {3, 200}}, 40, 40, random);
    test_pattern(c, {3, 4, true, {}}, 90, 90, random);
}

}  // namespace test
