// VerticalSlashSelect against sums of probabilities, VerticalSlashAttention against its tiles' keys one by
// one.

#include <set>

#include "cases.h"

namespace test {
namespace {

constexpr int kTile = 64;

struct Sizes {
    int n, length, vertical, slash;
};

struct Inputs {
    int capacity;
    Numbers q, k, v;
    Buffer length;
    h2o_kv kv;

    template <class R>
    Inputs(const Case& c, const Sizes& sizes, R& random)
        : capacity(sizes.length + 5),
          q(size_t(sizes.n) * c.shape.query_heads * c.shape.head_size, c.shape.dtype),
          k(size_t(capacity) * c.shape.kv_heads * c.shape.head_size, c.shape.dtype),
          v(k.exact.size(), c.shape.dtype),
          length(8, false) {
        fill_normal(q, c.shape.dtype, c.spread, random);
        fill_normal(k, c.shape.dtype, 1, random);
        fill_normal(v, c.shape.dtype, 1, random);
        kv = cache_of(k, v, capacity);
        const int64_t value = sizes.length;
        std::memcpy(length.host().data(), &value, 8);
        length.reset();
    }
};

// How much of the rows' probability each key of a head gets, or each distance.
void add_up(const h2o_shape& s, const Inputs& in, const Sizes& sizes, int head, std::vector<double>& columns,
            std::vector<double>& distances) {
    const size_t d = size_t(s.head_size), kv = size_t(head / (s.query_heads / s.kv_heads));
    columns.assign(sizes.length, 0);
    distances.assign(sizes.length, 0);
    for (int r = 0; r < sizes.n; ++r) {
        const int position = sizes.length - sizes.n + r;
        std::vector<double> p;
        for (int j = 0; j <= position; ++j) {
            double dot = 0;
            for (size_t i = 0; i < d; ++i)
                dot += in.q.exact[(size_t(r) * s.query_heads + head) * d + i] *
                       in.k.exact[(size_t(j) * s.kv_heads + kv) * d + i];
            p.push_back(dot * s.scale);
        }
        const double top = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& x : p) sum += x = std::exp(x - top);
        for (int j = 0; j <= position; ++j) {
            columns[j] += p[j] / sum;
            distances[position - j] += p[j] / sum;
        }
    }
}

// `list` are the numbers below `forced` and the best of the others, rising, as far as there are any.
void check_best(const Case& c, const int32_t* list, int count, int forced, const std::vector<double>& score) {
    const int there = std::min<int>(count, int(score.size()));
    double least = HUGE_VAL, most = 0;
    std::set<int> chosen;
    for (int i = 0; i < there; ++i) {
        EXPECT(list[i] >= 0 && list[i] < int(score.size()) && (i == 0 || list[i] > list[i - 1]));
        chosen.insert(list[i]);
        if (list[i] >= forced) least = std::fmin(least, score[list[i]]);
    }
    for (int i = there; i < count; ++i) EXPECT(list[i] == -1);
    for (int i = 0; i < std::min(forced, there); ++i) EXPECT(chosen.count(i) == 1);
    for (int i = forced; i < int(score.size()); ++i)
        if (chosen.count(i) == 0) most = std::fmax(most, score[i]);
    EXPECT(int(chosen.size()) == there);
    EXPECT(least >= most * (c.shape.dtype == H2O_F16 || c.spread > 1 ? 0.99 : 0.9999) - 1e-6);
}

void test_select(const Case& c, const Sizes& sizes, int sink, int near, std::mt19937& random) {
    const h2o_shape& s = c.shape;
    name_case("lines", c, "n=%d length=%d vertical=%d slash=%d", sizes.n, sizes.length, sizes.vertical,
              sizes.slash);
    Inputs in(c, sizes, random);
    Buffer columns(size_t(s.query_heads) * sizes.vertical * 4, true),
        distances(size_t(s.query_heads) * sizes.slash * 4, true);
    const size_t bytes = h2o_cuda_vertical_slash_select_workspace(&s, sizes.n, in.capacity);
    Buffer workspace(bytes, true);
    run_twice({&columns, &distances}, [&] {
        return h2o_cuda_vertical_slash_select(nullptr, &s, sizes.n, in.q.buffer.device(), &in.kv,
                                              in.length.device<int64_t>(), sizes.vertical, sizes.slash, sink,
                                              near, columns.device<int32_t>(), distances.device<int32_t>(),
                                              workspace.device(), bytes);
    });
    const std::vector<int32_t> of_columns = columns.values<int32_t>(),
                               of_distances = distances.values<int32_t>();
    for (int h = 0; h < s.query_heads; ++h) {
        std::vector<double> by_column, by_distance;
        add_up(s, in, sizes, h, by_column, by_distance);
        check_best(c, of_columns.data() + h * sizes.vertical, sizes.vertical, sink, by_column);
        check_best(c, of_distances.data() + h * sizes.slash, sizes.slash, near, by_distance);
    }
}

// Rising numbers below `most` for every head, -1 at the end of some.
std::vector<int32_t> some_lines(int heads, int count, int most, std::mt19937& random) {
    std::vector<int32_t> lists = random_memory(heads, count, most, random);
    for (int h = 0; h < heads; ++h)
        for (int i = count - int(random() % count); i < count; ++i) lists[h * count + i] = -1;
    return lists;
}

// The keys in a tile's runs, as upstream joins them.
std::set<int> keys_of(int end, const int32_t* distances, int count) {
    std::set<int> keys;
    int last = -1;
    for (int i = count - 1; i >= -1; --i) {
        const int distance = i < 0 ? 0 : distances[i];
        if (distance < 0 || distance >= end) continue;
        const int stop = std::max(end - distance, kTile);
        const bool fresh = last < 0 || stop > last + kTile;
        if (!fresh && stop <= last) continue;
        last = fresh ? stop : last + kTile;
        for (int j = last - kTile; j < last; ++j) keys.insert(j);
    }
    return keys;
}

void test_attention(const Case& c, const Sizes& sizes, std::mt19937& random) {
    const h2o_shape& s = c.shape;
    name_case("line attention", c, "n=%d length=%d vertical=%d slash=%d", sizes.n, sizes.length,
              sizes.vertical, sizes.slash);
    Inputs in(c, sizes, random);
    const std::vector<int32_t> columns = some_lines(s.query_heads, sizes.vertical, sizes.length, random),
                               distances = some_lines(s.query_heads, sizes.slash, sizes.length, random);
    Buffer column_list(columns.size() * 4, false), distance_list(distances.size() * 4, false);
    fill_ints(column_list, columns);
    fill_ints(distance_list, distances);
    Buffer o(in.q.exact.size() * size_of(s.dtype), true);
    const size_t bytes =
        h2o_cuda_vertical_slash_attention_workspace(&s, sizes.n, in.capacity, sizes.vertical, sizes.slash);
    Buffer workspace(bytes, true);
    run_twice({&o}, [&] {
        return h2o_cuda_vertical_slash_attention(
            nullptr, &s, sizes.n, in.q.buffer.device(), &in.kv, in.length.device<int64_t>(), sizes.vertical,
            column_list.device<int32_t>(), sizes.slash, distance_list.device<int32_t>(), o.device(),
            workspace.device(), bytes);
    });
    h2o_shape by_query = s;
    by_query.score_heads = s.query_heads;
    const size_t d = size_t(s.head_size), row = size_t(s.query_heads) * d;
    std::vector<double> exact(in.q.exact.size()), rough(in.q.exact.size());
    for (int h = 0; h < s.query_heads; ++h) {
        std::vector<std::set<int>> seen;
        for (int first = 0; first < sizes.n; first += kTile)
            seen.push_back(
                keys_of(sizes.length - sizes.n + first + kTile, &distances[h * sizes.slash], sizes.slash));
        const auto begin = columns.begin() + h * sizes.vertical, end = begin + sizes.vertical;
        const auto visible = [&](int i, int j) {
            return j <= sizes.length - sizes.n + i &&
                   (seen[i / kTile].count(j) > 0 || std::find(begin, end, j) != end);
        };
        const auto rows_of_head = [&](const std::vector<double>& values) {
            return [&](int head, int j) {
                return &values[(size_t(j) * s.kv_heads + head / (s.query_heads / s.kv_heads)) * d];
            };
        };
        for (auto* to : {&exact, &rough}) {
            const Reference r =
                attend(by_query, in.q.exact, sizes.n, sizes.length, rows_of_head(in.k.exact),
                       rows_of_head(in.v.exact), visible, to == &exact ? Precision::kExact : yardstick(c));
            for (int i = 0; i < sizes.n; ++i)
                std::copy_n(r.o.begin() + i * row + h * d, d, to->begin() + i * row + h * d);
        }
    }
    compare_to(c, "o", download(o, s.dtype), exact, rough);
}

}  // namespace

void test_line_lists(const Options& options) {
    std::mt19937 random(options.seed + 7);
    for (const Case& c : cases(options)) {
        test_select(c, {5, 43, 9, 12}, 3, 4, random);
        test_attention(c, {21, 80, 7, 2}, random);
    }
    for (const Case& c : cases_without_tiles()) {
        test_select(c, {5, 43, 9, 12}, 3, 4, random);
        test_attention(c, {21, 80, 7, 2}, random);
    }
    const Case c = cases(options).front();
    test_select(c, {1, 1, 4, 4}, 30, 100, random);
    test_select(c, {40, 300, 31, 101}, 30, 100, random);
    test_attention(c, {1, 1, 1, 1}, random);
    test_attention(c, {70, 70, 1, 40}, random);
    test_attention(c, {130, 500, 33, 5}, random);
}

}  // namespace test
