// PageBounds, PageSelect and PageAttention: bounds by rows in one call and in two, selection against a sort,
// attention against the listed rows.

#include "cases.h"

namespace test {
namespace {

struct Paged {
    int length, page, budget;
};

void test_pages(const Case& c, const Paged& p, std::mt19937& random) {
    const h2o_shape& s = c.shape;
    name_case("pages", c, "length=%d page=%d budget=%d", p.length, p.page, p.budget);
    const int capacity = p.length + 7, pages = (capacity + p.page - 1) / p.page;
    const int used = (p.length + p.page - 1) / p.page, group = s.query_heads / s.score_heads;
    const size_t width = size_t(s.kv_heads) * s.head_size;
    Numbers q(size_t(s.query_heads) * s.head_size, s.dtype), k(capacity * width, s.dtype),
        v(capacity * width, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    fill_normal(k, s.dtype, 1, random);
    fill_normal(v, s.dtype, 1, random);
    const h2o_kv kv = cache_of(k, v, capacity);
    Buffer bounds(3 * 8, false), k_min(pages * width * 4, true), k_max(pages * width * 4, true);
    const int64_t values[3] = {0, p.length / 2, p.length};
    std::memcpy(bounds.host().data(), values, sizeof values);
    for (Buffer* buffer : {&bounds, &k_min, &k_max}) buffer->reset();
    const int64_t* at = bounds.device<int64_t>();
    auto bound = call_of<h2o::calls::PageBounds>(s, &kv);
    bound.page_size = p.page, bound.Nb = pages;
    bound.k_min = bound.k_min_next = k_min.device<float>();
    bound.k_max = bound.k_max_next = k_max.device<float>();
    bound.start_on_host = values, bound.length_on_host = values + 2;  // what counts is how many
    for (int i = p.length / 2 > 0 ? 0 : 1; i < 2; ++i) {
        bound.start = at + (i && p.length / 2 ? 1 : 0), bound.length = at + i + 1;
        EXPECT(h2o::cuda::run(bound) == H2O_OK);
    }
    must(cudaDeviceSynchronize());
    const std::vector<double> low = download(k_min, H2O_F32), high = download(k_max, H2O_F32);
    std::vector<std::vector<std::pair<double, int>>> order(s.score_heads);
    for (int set = 0; set < s.score_heads; ++set)
        for (int page = 0; page < used - 1; ++page) {
            double best = -HUGE_VAL;
            for (int h = set * group; h < (set + 1) * group; ++h) {
                const size_t head = size_t(h / (s.query_heads / s.kv_heads)) * s.head_size;
                double bound = 0;
                for (int i = 0; i < s.head_size; ++i) {
                    double least = HUGE_VAL, most = -HUGE_VAL;
                    for (int row = page * p.page; row < (page + 1) * p.page; ++row) {
                        least = std::fmin(least, k.exact[row * width + head + i]);
                        most = std::fmax(most, k.exact[row * width + head + i]);
                    }
                    EXPECT(least == low[page * width + head + i] && most == high[page * width + head + i]);
                    const double x = q.exact[size_t(h) * s.head_size + i];
                    bound += std::fmax(x * least, x * most);
                }
                best = std::fmax(best, bound);
            }
            order[set].emplace_back(-best, page);
        }

    Buffer list(size_t(s.score_heads) * p.budget * 4, true);
    auto select = call_of<h2o::calls::PageSelect>(s);
    select.q = q.buffer.device(), select.length = at + 2, select.page_size = p.page, select.Nb = pages;
    select.k_min = bound.k_min, select.k_max = bound.k_max;
    select.M = p.budget, select.page_list = list.device<int32_t>();
    Workspace workspace(select);
    run_twice({&list}, [&] { return h2o::cuda::run(select); });
    const std::vector<int32_t> chosen = list.values<int32_t>();
    for (int set = 0; set < s.score_heads; ++set) {
        std::sort(order[set].begin(), order[set].end());
        std::vector<int32_t> expected;
        for (int i = 0; i < std::min(p.budget, used) - 1; ++i) expected.push_back(order[set][i].second);
        expected.push_back(used - 1);
        std::sort(expected.begin(), expected.end());
        expected.resize(p.budget, -1);
        EXPECT(std::equal(expected.begin(), expected.end(), chosen.begin() + set * p.budget));
    }

    Buffer o(q.exact.size() * size_of(s.dtype), true);
    auto attention = call_of<h2o::calls::PageAttention>(s, &kv);
    attention.q = q.buffer.device(), attention.length = at + 2, attention.page_size = p.page;
    attention.M = p.budget, attention.page_list = list.device<int32_t>(), attention.o = o.device();
    Workspace parts(attention);
    run_twice({&o}, [&] { return h2o::cuda::run(attention); });
    h2o_shape by_query = s;
    by_query.score_heads = s.query_heads;
    const auto rows_of_head = [&](const std::vector<double>& rows) {
        return [&](int h, int j) {
            return &rows[j * width + size_t(h / (s.query_heads / s.kv_heads)) * s.head_size];
        };
    };
    std::vector<double> exact, rough;
    for (int h = 0; h < s.query_heads; ++h) {  // a head at a time: each sees rows of its own
        const auto begin = chosen.begin() + h / group * p.budget;
        const auto visible = [&](int, int j) {
            return std::find(begin, begin + p.budget, j / p.page) != begin + p.budget;
        };
        for (auto* to : {&exact, &rough}) {
            const Precision precision = to == &exact ? Precision::kExact : yardstick(c);
            const Reference r = attend(by_query, q.exact, 1, p.length, rows_of_head(k.exact),
                                       rows_of_head(v.exact), visible, precision);
            to->insert(to->end(), r.o.begin() + h * s.head_size, r.o.begin() + (h + 1) * s.head_size);
        }
    }
    compare_to(c, "o", download(o, s.dtype), exact, rough);
}

}  // namespace

void test_page_lists(const Options& options) {
    std::mt19937 random(options.seed + 6);
    for (const Case& c : cases(options)) {
        test_pages(c, {75, 8, 4}, random);
        test_pages(c, {33, 16, 4}, random);
    }
    for (const Case& c : cases_without_tiles()) test_pages(c, {75, 8, 4}, random);
    const Case c = cases(options).front();
    test_pages(c, {1, 16, 1}, random);
    test_pages(c, {640, 1, 33}, random);
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {  // keys in parts; and more rows than a warp takes
        test_pages({{4, 2, 2, 64, 0.125f, dtype, 0, 0, 0}, 1}, {640, 16, 12}, random);
        test_pages({{40, 2, 2, 64, 0.125f, dtype, 0, 0, 0}, 1}, {150, 24, 5}, random);
    }
}

}  // namespace test
