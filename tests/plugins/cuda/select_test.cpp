// MemorySelect against a plain sort, with ties, negligible scores, short histories and long ones; and
// QuerySelect and BlockSelect against float64.

#include "cases.h"

namespace test {
namespace {

struct Selection {
    int heads, capacity, start, stop, previous, local, heavy;
    int levels;  // scores are multiples of 1 / levels, so that many are equal; 0: all different
};

std::vector<int32_t> expected_memory(const Selection& s, int head, const std::vector<float>& score,
                                     const std::vector<int32_t>& memory) {
    const int recent = std::min(s.local, s.stop - s.start);
    std::vector<int32_t> candidates(memory.begin() + head * s.previous,
                                    memory.begin() + (head + 1) * s.previous);
    for (int i = s.start; i < s.stop - recent; ++i) candidates.push_back(i);
    const auto value = [&](int32_t i) {
        const float own = score[size_t(i) * s.heads + head];
        return own >= 1e-30f ? own : 0.f;
    };
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int32_t a, int32_t b) { return value(a) > value(b); });
    candidates.resize(size_t(s.local + s.heavy - recent));
    for (int i = s.stop - recent; i < s.stop; ++i) candidates.push_back(i);
    std::sort(candidates.begin(), candidates.end());
    return candidates;
}

// A whole step: its values (0: none, 1: added, 2: in the place of the scores), the selection, all copies.
void test_step(const Selection& s, Numbers& score, const std::vector<int32_t>& memory, Buffer& memory_buffer,
               int kind, std::mt19937& random) {
    const size_t places = size_t(s.heads) * (s.local + s.heavy);
    Numbers values(memory.size(), H2O_F32);
    fill_normal(values, H2O_F32, 1, random);
    Buffer next(places * 4, true), last(places * 4, true), set(places * 4, true), kept(places * 4, true);
    h2o::calls::MemoryStep step;
    step.Hs = s.heads, step.cap = s.capacity, step.Mp = s.previous, step.local = s.local;
    step.M = s.local + s.heavy, step.start = s.start, step.stop = s.stop;
    step.memory = memory_buffer.device<int32_t>(), step.score = score.buffer.device<float>();
    step.values = kind ? values.buffer.device<float>() : nullptr, step.add = kind != 2;
    step.memory_next = next.device<int32_t>(), step.last = last.device<int32_t>();
    step.boundary = set.device<int32_t>(), step.scores = kept.device<float>();
    run_twice({&next, &last, &set, &kept, &score.buffer}, [&] { return h2o::cuda::run(step); });
    std::vector<float> after(score.exact.begin(), score.exact.end());
    for (size_t i = 0; kind && i < memory.size(); ++i) {
        float& at = after[size_t(memory[i]) * s.heads + i / s.previous];
        const float value = static_cast<float>(values.exact[i]);
        at = kind == 2 ? value : at + value;
    }
    EXPECT(score.buffer.values<float>() == after);
    std::vector<int32_t> expected;
    std::vector<float> scores;
    for (int h = 0; h < s.heads; ++h)
        for (const int32_t at : expected_memory(s, h, after, memory)) {
            expected.push_back(at);
            scores.push_back(after[size_t(at) * s.heads + h]);
        }
    for (const Buffer* one : {&next, &last, &set}) EXPECT(one->values<int32_t>() == expected);
    EXPECT(kept.values<float>() == scores);
    score.buffer.reset();
}

void test_selection(const Selection& s, std::mt19937& random) {
    char name[160];
    std::snprintf(name, sizeof name, "select Hs=%d range=%d..%d Mp=%d L=%d H=%d levels=%d", s.heads, s.start,
                  s.stop, s.previous, s.local, s.heavy, s.levels);
    context = name;
    Numbers score(size_t(s.capacity) * s.heads, H2O_F32);
    fill_normal(score, H2O_F32, 1, random);
    std::vector<float> values;
    for (size_t i = 0; i < score.exact.size(); ++i) {
        if (s.levels > 0) score.exact[i] = std::round(score.exact[i] * s.levels) / s.levels;
        if (i % 5 == 0) score.exact[i] *= 1e-33;  // some just below 1e-30, some far below
        if (i % 7 == 0) score.exact[i] *= 1e-29;
        store(score.buffer.host(), i, H2O_F32, score.exact[i]);  // negative ones count as 0 too
        values.push_back(static_cast<float>(score.exact[i]));
    }
    score.buffer.reset();
    const std::vector<int32_t> memory = random_memory(s.heads, s.previous, s.start, random);
    Buffer memory_buffer(memory.size() * 4, false), range(16, false),
        next(size_t(s.heads) * (s.local + s.heavy) * 4, true);
    fill_ints(memory_buffer, memory);
    const int64_t bounds[2] = {s.start, s.stop};
    std::memcpy(range.host().data(), bounds, 16);
    range.reset();
    h2o::calls::MemorySelect select;
    select.Hs = s.heads, select.cap = s.capacity, select.Mp = s.previous, select.local = s.local;
    select.M = s.local + s.heavy, select.score = score.buffer.device<float>();
    select.memory = memory_buffer.device<int32_t>(), select.chunk_range = range.device<int64_t>();
    select.memory_next = next.device<int32_t>();
    run_twice({&next}, [&] { return h2o::cuda::run(select); });
    std::vector<int32_t> expected;
    for (int h = 0; h < s.heads; ++h) {
        const std::vector<int32_t> one = expected_memory(s, h, values, memory);
        expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT(next.values<int32_t>() == expected);
    for (const int values : {0, 1, 2}) test_step(s, score, memory, memory_buffer, values, random);
}

struct Query {
    int n, tile, stride, reach, local, heavy;
    std::vector<int64_t> past;  // of each tile
    bool listed;                // candidates are every second row of the longest past
    int d;
    h2o_dtype dtype;
    int first = 0;       // cache row of the first query; 0: the first tile's past
    bool alone = false;  // each query head chooses, and those of a key/value head share a list
    int loud = 0;        // rows from row 200 on, none in the sample, whose scores are far above the others'

    int begin(int i) const {
        return (first > 0 ? first : static_cast<int>(past[0])) + i * tile;
    }  // of tile i
    int end() const { return begin(0) + n; }
};

// How many places a place stands for in a vote's denominator.
double weight(size_t place) {
    if (place < 128) return 1;
    return place % 128 >= 56 && place % 128 < 72 ? 8 : 0;
}

// The rows of a tile's past with what the votes of one score head's queries gave them, neighbours added.
std::vector<double> votes_of(const Query& s, int score_head, int tile, const std::vector<int32_t>& rows,
                             const Numbers& q, const Numbers& k) {
    constexpr int heads = 4, sets = 2;
    std::vector<double> sum(rows.size()), smooth(rows.size());
    const int end = std::min(s.n, (tile + 1) * s.tile), together = s.alone ? 1 : heads / sets;
    for (int run = tile * s.tile; run < end; run += s.stride)
        for (int h = score_head * together; h < (score_head + 1) * together; ++h) {
            const int set = h / (heads / sets);
            const int row = std::min(run + h % together * s.stride / together, end - 1);
            std::vector<int32_t> all = rows;
            for (int own = int(s.past[size_t(tile)]); own <= s.begin(0) + row; ++own) all.push_back(own);
            std::vector<double> p(all.size());
            double top = -INFINITY, total = 0;
            for (size_t j = 0; j < all.size(); ++j) {
                for (int c = 0; c < s.d; ++c)
                    p[j] += q.exact[(size_t(row) * heads + h) * s.d + c] *
                            k.exact[(size_t(all[j]) * sets + set) * s.d + c];
                top = std::fmax(top, p[j] *= 1 / std::sqrt(s.d));
            }
            for (size_t j = 0; j < all.size(); ++j)
                total += (j < rows.size() ? weight(j) : 1) * std::exp(p[j] - top);
            for (size_t j = 0; j < rows.size(); ++j)
                sum[j] += std::exp(std::fmin(p[j] - top - std::log(total), 0));
        }
    for (size_t j = 0; j < rows.size(); ++j)
        for (size_t i = 0; i < rows.size(); ++i)
            if (std::abs(rows[i] - rows[j]) <= s.reach) smooth[j] += (i == j ? 1 : 0.25) * sum[i];
    return smooth;
}

// The best of the rows, in order, then the local window. Rows whose votes are nearly equal may change places.
void check_query(const Query& s, const std::vector<double>& votes, const std::vector<int32_t>& rows,
                 int border, const int32_t* got) {
    std::vector<double> before;  // the window
    for (size_t j = 0; j < rows.size() && rows[j] < border; ++j) before.push_back(votes[j]);
    std::vector<double> best = before;
    std::sort(best.rbegin(), best.rend());
    const double least = best[size_t(s.heavy) - 1], near = s.dtype == H2O_F16 ? 2e-2 : 1e-4;
    for (size_t j = 0; j < before.size(); ++j) {
        const bool in = std::binary_search(got, got + s.heavy, rows[j]);
        EXPECT(in ? before[j] >= least * (1 - near) : before[j] <= least * (1 + near));
    }
    for (int i = 1; i < s.heavy; ++i) EXPECT(got[i - 1] < got[i]);
    for (int i = 0; i < s.local; ++i) EXPECT(got[s.heavy + i] == border + i);
}

void test_query(const Query& s, std::mt19937& random) {
    constexpr int heads = 4, sets = 2;
    const int choosing = s.alone ? heads : sets, count = static_cast<int>(s.past.size());
    const int longest = static_cast<int>(*std::max_element(s.past.begin(), s.past.end()));
    char name[160];
    std::snprintf(name, sizeof name,
                  "query n=%d tile=%d past=%d reach=%d listed=%d d=%d f16=%d alone=%d loud=%d", s.n, s.tile,
                  longest, s.reach, s.listed, s.d, s.dtype == H2O_F16, s.alone, s.loud);
    context = name;
    Numbers q(size_t(s.n) * heads * s.d, s.dtype), k(size_t(s.end()) * sets * s.d, s.dtype);
    fill_normal(q, s.dtype, 2, random);
    fill_normal(k, s.dtype, 1, random);
    for (size_t i = size_t(200) * sets * s.d; i < size_t(200 + s.loud) * sets * s.d; ++i)
        store(k.buffer.host(), i, s.dtype, k.exact[i] *= 16);
    k.buffer.reset();
    std::vector<int32_t> list;
    for (int row = 0; s.listed && row < longest; row += 2) list.push_back(row);
    const int slots = static_cast<int>(list.size());
    std::vector<int32_t> lists;
    for (int i = 0; i < count * sets; ++i) lists.insert(lists.end(), list.begin(), list.end());
    Buffer candidates(lists.size() * 4, false), past(s.past.size() * 8, false),
        first(s.past.size() * 8, false);
    if (slots) fill_ints(candidates, lists);
    std::memcpy(past.host().data(), s.past.data(), s.past.size() * 8);
    past.reset();
    std::vector<int64_t> begins;
    for (int i = 0; i < count; ++i) begins.push_back(s.begin(i));
    std::memcpy(first.host().data(), begins.data(), begins.size() * 8);
    first.reset();
    h2o::calls::QuerySelect call;
    call.shape = {heads, sets, choosing, s.d, 1 / std::sqrt(float(s.d)), s.dtype, s.d, 0, 0};
    call.n = s.n, call.cap = s.end(), call.t = count, call.Mp = slots, call.Hl = sets,
    call.M = s.local + s.heavy;
    call.tile = s.tile, call.stride = s.stride, call.reach = s.reach;
    call.local = s.local, call.heavy = s.heavy;
    Buffer next(size_t(count) * size_t(choosing) * size_t(s.local + s.heavy) * 4, true);
    Buffer workspace(h2o::cuda::workspace(call), true);
    const h2o_kv kv = cache_of(k, k, s.end());
    call.q = q.buffer.device(), call.kv = &kv;
    call.past = past.device<int64_t>(), call.first = first.device<int64_t>();
    call.candidates = candidates.device<int32_t>(), call.memory_next = next.device<int32_t>();
    call.workspace = workspace.device(), call.workspace_bytes = workspace.host().size();
    run_twice({&next}, [&] {
        workspace.reset();
        return h2o::cuda::run(call);
    });
    const std::vector<int32_t> got = next.values<int32_t>();
    for (int tile = 0; tile < count; ++tile)
        for (int head = 0; head < choosing; ++head) {
            std::vector<int32_t> rows = list;
            for (int row = 0; !s.listed && row < s.past[size_t(tile)]; ++row) rows.push_back(row);
            const auto border = static_cast<int>(s.past[size_t(tile)]) - s.local;
            check_query(s, votes_of(s, head, tile, rows, q, k), rows, border,
                        got.data() + size_t(tile * choosing + head) * size_t(s.local + s.heavy));
        }
}

struct Blocks {
    int n, tile, stride, block, local, chosen;  // blocks of a list
    std::vector<int64_t> past;                  // of each tile; the local window begins with a block
    int d;
    h2o_dtype dtype;
    double bias = 0;     // of the keys
    bool alone = false;  // as of Query
};

// Block 0 and the best others by votes for [mean, variance], then the local window.
void test_blocks(const Blocks& s, std::mt19937& random) {
    constexpr int heads = 4, sets = 2;
    const int choosing = s.alone ? heads : sets, count = static_cast<int>(s.past.size());
    const int longest = static_cast<int>(*std::max_element(s.past.begin(), s.past.end()));
    char name[160];
    std::snprintf(name, sizeof name, "blocks of %d, n=%d tile=%d past=%d d=%d f16=%d bias=%g alone=%d",
                  s.block, s.n, s.tile, longest, s.d, s.dtype == H2O_F16, s.bias, s.alone);
    context = name;
    const auto d = size_t(s.d), blocks = size_t(longest / s.block), size = size_t(s.block);
    Numbers q(size_t(s.n) * heads * d, s.dtype), k(size_t(longest) * sets * d, s.dtype);
    fill_normal(q, s.dtype, 2, random);
    fill_normal(k, s.dtype, 1, random);
    for (size_t i = 0; i < k.exact.size(); ++i)
        store(k.buffer.host(), i, s.dtype, k.exact[i] += i % 2 ? s.bias : -s.bias);
    k.buffer.reset();
    Query of_blocks{s.n, s.tile, s.stride, 0, 0, 0, s.past, false, 2 * s.d, s.dtype, 1, s.alone};
    for (int64_t& past : of_blocks.past) past = 1 << 30;  // no rows of the chunk
    const double scale = 1 / std::sqrt(2.0 * s.d);        // as votes_of has it
    Numbers spread(2 * q.exact.size(), s.dtype), moments(blocks * sets * 2 * d, s.dtype);

    for (size_t i = 0; i < q.exact.size(); ++i) {
        double* const to = &spread.exact[i / d * 2 * d + i % d];
        to[0] = q.exact[i], to[d] = scale / 2 * q.exact[i] * q.exact[i];
    }
    for (size_t i = 0; i < blocks * sets * d; ++i) {
        double* const to = &moments.exact[i / d * 2 * d + i % d];
        const double* const from = &k.exact[i / (sets * d) * size * sets * d + i % (sets * d)];
        for (size_t row = 0; row < size; ++row) to[0] += from[row * sets * d] / double(size);
        for (size_t row = 0; row < size; ++row)
            to[d] += std::pow(from[row * sets * d] - to[0], 2) / double(size);
    }
    Buffer past(s.past.size() * 8, false);
    std::memcpy(past.host().data(), s.past.data(), s.past.size() * 8);
    past.reset();
    h2o::calls::BlockSelect call;
    call.shape = {heads, sets, choosing, s.d, float(scale), s.dtype, s.d, 0, 0};
    call.n = s.n, call.cap = longest, call.t = count, call.tile = s.tile, call.stride = s.stride;
    call.block_size = s.block, call.local = s.local, call.heavy = s.chosen * s.block;
    call.M = call.local + call.heavy;
    Buffer lists(size_t(count) * size_t(choosing) * size_t(call.M) * 4, true);
    Buffer workspace(h2o::cuda::workspace(call), true);
    const h2o_kv kv = cache_of(k, k, longest);
    call.q = q.buffer.device(), call.kv = &kv, call.past = past.device<int64_t>();
    call.candidates = lists.device<int32_t>();
    call.workspace = workspace.device(), call.workspace_bytes = workspace.host().size();
    run_twice({&lists}, [&] {
        workspace.reset();
        return h2o::cuda::run(call);
    });
    const std::vector<int32_t> got = lists.values<int32_t>();
    // Half a unit in the last place of a mean is more than a score's own error, where keys have a bias.
    const double near = s.dtype == H2O_F32 ? 1e-4 : s.bias > 0 ? 0.1 : 2e-2;
    for (int tile = 0; tile < count; ++tile)
        for (int head = 0; head < choosing; ++head) {
            const int border = int(s.past[size_t(tile)]) - s.local;
            std::vector<int32_t> rows(size_t(s.past[size_t(tile)] / s.block));
            std::iota(rows.begin(), rows.end(), 0);
            const std::vector<double> votes = votes_of(of_blocks, head, tile, rows, spread, moments);
            const int32_t* const list = got.data() + size_t(tile * choosing + head) * size_t(call.M);
            std::vector<int> chosen(size_t(border / s.block));
            for (int i = 0; i < call.heavy; ++i) {
                const int block = list[i - i % s.block] / s.block;
                EXPECT(list[i] == block * s.block + i % s.block && list[i] < border);
                chosen[size_t(block)] = 1;
            }
            EXPECT(std::count(chosen.begin(), chosen.end(), 1) == s.chosen && chosen[0] == 1);
            double least = INFINITY, most = 0;
            for (size_t i = 1; i < chosen.size(); ++i)
                (chosen[i] ? least = std::fmin(least, votes[i]) : most = std::fmax(most, votes[i]));
            EXPECT(least >= most * (1 - near));
            for (int i = 0; i < s.local; ++i) EXPECT(list[call.heavy + i] == border + i);
        }
}

}  // namespace

void test_select(const Options& options) {
    std::mt19937 random(options.seed + 4);
    const auto between = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    test_selection({2, 64, 0, 40, 0, 8, 8, 0}, random);
    test_selection({2, 64, 0, 40, 0, 8, 32, 2}, random);           // exactly as many candidates as places
    test_selection({3, 64, 0, 40, 0, 16, 0, 2}, random);           // no heavy hitters
    test_selection({2, 300, 200, 210, 64, 16, 16, 3}, random);     // a chunk shorter than the local window
    test_selection({2, 20000, 0, 20000, 0, 64, 200, 50}, random);  // more candidates than are kept at hand
    for (int i = 0; i < (options.small ? 4 : 60); ++i) {
        Selection s;
        s.heads = between(1, options.small ? 2 : 8);
        s.start = between(0, 3000);
        s.stop = s.start + between(1, 1500);
        s.previous = between(0, std::min(s.start, 600));
        const int total = between(1, s.previous + s.stop - s.start);
        s.local = between(0, total);
        s.heavy = total - s.local;
        s.levels = i % 3 == 0 ? 0 : between(1, 40);
        s.capacity = s.stop + 10;
        test_selection(s, random);
    }
    for (const h2o_dtype dtype : {H2O_F32, H2O_F16}) {
        test_query({30, 30, 1, 0, 1, 2, {10}, false, 64, dtype}, random);  // more votes than keys
        test_query({40, 16, 3, 2, 4, 9, {70, 70, 86}, false, 64, dtype}, random);
        test_query({40, 16, 3, 5, 4, 9, {90, 90, 90}, true, 48, dtype}, random);
        test_query({40, 16, 3, 2, 4, 9, {70, 70, 86}, false, 64, dtype, 86}, random);  // inside a chunk
        test_query({40, 16, 2, 2, 4, 9, {400, 400, 400}, true, 64, dtype, 600}, random);
        if (dtype == H2O_F32 && options.small) continue;  // the same steps follow in float16
        test_query({60, 32, 4, 1, 4, 9, {200, 200}, false, 128, dtype},
                   random);  // more keys than a block reads
        test_query({80, 80, 1, 2, 4, 30, {700}, true, 32, dtype},
                   random);  // and more votes, in four turns of slots
        // Two heads of 32 votes share a block, then of 6 and of 5 in a partial tile; 33 votes have their own.
        test_query({64, 64, 2, 1, 4, 30, {300}, true, 64, dtype, 0, true}, random);
        test_query({40, 24, 4, 2, 4, 9, {90, 90}, true, 48, dtype, 100, true}, random);
        test_query({40, 24, 4, 2, 4, 9, {90, 90}, false, 64, dtype, 0, true}, random);
        test_query({33, 33, 1, 0, 4, 9, {90}, true, 64, dtype, 0, true}, random);
        // Denominators of a sample: of some of a step's sampled places, and of more than a block reads. Tiles
        // that have none share the launch.
        test_query({24, 8, 1, 1, 4, 9, {130, 190, 321}, false, 64, dtype, 330}, random);
        test_query({16, 16, 2, 2, 4, 30, {2430}, true, 32, dtype, 2433, true}, random);
        test_query({20, 16, 1, 0, 4, 9, {1300, 1300}, false, 32, dtype}, random);
        // Scores far above an estimated denominator: such a vote is 1. Heads of 40 and 192 have no tiles.
        for (const int d : {40, 64, 192})
            test_query({16, 16, 1, 0, 4, 7, {320}, false, d, dtype, 0, false, 16}, random);
    }
    for (const h2o_dtype dtype : {H2O_F32, H2O_F16}) {
        test_blocks({39, 16, 3, 8, 16, 5, {160, 160, 240}, 64, dtype}, random);  // the last tile has 7 rows
        test_blocks({20, 8, 4, 16, 16, 3, {320, 320, 320}, 64, dtype, 100}, random);
        test_blocks({33, 33, 1, 8, 8, 5, {168}, 48, dtype, 0, true}, random);
        test_blocks({16, 16, 4, 4, 8, 20, {800}, 32, dtype}, random);  // a sample of the blocks
        if (dtype == H2O_F32 && options.small) continue;
        for (const int d : {80, 96, 128}) test_blocks({16, 16, 4, 8, 8, 5, {200}, d, dtype}, random);
    }
    // More candidates than are kept at hand.
    test_query({4, 4, 1, 3, 8, 300, {10000}, false, 32, H2O_F16}, random);
}

}  // namespace test
