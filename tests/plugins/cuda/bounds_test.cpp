// Integers outside their range, as when an operator is timed on uninitialised memory: each is clamped, and no
// address leaves the arrays. Under the emulation such an address is a crash.

#include <climits>
#include <cstring>

#include "cases.h"

namespace test {
namespace {

constexpr int kRows = 40, kSlots = 9, kTokens = 5;

// Outputs of `call` after `integers` held first `wrong` and then `right`: the same bytes.
template <class T, class F>
void expect_alike(Buffer& integers, const std::vector<T>& wrong, const std::vector<T>& right,
                  const std::vector<Buffer*>& outputs, F&& call) {
    std::vector<std::vector<unsigned char>> results;
    for (const std::vector<T>* values : {&wrong, &right}) {
        std::memcpy(integers.host().data(), values->data(), values->size() * sizeof(T));
        integers.reset();
        run_twice(outputs, call);
        for (const Buffer* output : outputs) results.push_back(output->download());
    }
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT(results[i] == results[i + outputs.size()]);
}

void test_memory_entries(const Case& c, std::mt19937& random) {
    name_case("bounds", c, "");
    const h2o_shape s = c.shape;
    const size_t element = size_of(s.dtype), d = size_t(s.head_size);
    Numbers q(kTokens * s.query_heads * d, s.dtype), k(kRows * s.kv_heads * d, s.dtype),
        v(kRows * s.kv_heads * d, s.dtype);
    for (Numbers* numbers : {&q, &k, &v}) fill_normal(*numbers, s.dtype, 1, random);
    const h2o_kv kv = cache_of(k, v, kRows);
    std::vector<int32_t> wrong, right;
    for (int i = 0; i < s.score_heads * kSlots; ++i) {
        const int32_t entries[] = {3, INT_MAX, INT_MIN, -1, kRows};
        wrong.push_back(entries[i % 5]);
        right.push_back(i % 5 ? kRows - 1 : 3);
    }
    Buffer memory(wrong.size() * 4, false), k_mem(s.score_heads * kSlots * d * element, true),
        v_mem(s.score_heads * kSlots * d * element, true), colsum(s.score_heads * kSlots * 4, true),
        of_chunk(kTokens * s.score_heads * 4, true);
    const int32_t* entries = memory.device<int32_t>();
    auto gather = call_of<h2o::calls::MemoryGather>(s, &kv);
    gather.M = kSlots, gather.memory = entries, gather.k_mem = k_mem.device(), gather.v_mem = v_mem.device();
    expect_alike(memory, wrong, right, {&k_mem, &v_mem}, [&] { return h2o::cuda::run(gather); });

    StateBuffers state(s, kTokens, false);
    random_state(s, kTokens, false, state, random);
    auto fused = call_of<h2o::calls::MemoryFusedAttention>(s, &kv);
    fused.n = kTokens, fused.M = kSlots, fused.q = q.buffer.device(), fused.memory = entries;
    fused.colsum = colsum.device<float>();
    state.fuse(fused);
    Workspace workspace(fused);
    expect_alike(memory, wrong, right, {&state.o, &state.m, &state.l, &colsum},
                 [&] { return h2o::cuda::run(fused); });

    auto vote = call_of<h2o::calls::CachedCandidateScore>(s, &kv);
    vote.w = vote.n = kTokens, vote.M = kSlots, vote.q_window = q.buffer.device(), vote.k = k.buffer.device();
    vote.memory = entries, vote.score_mem = colsum.device<float>();
    vote.score_chunk = of_chunk.device<float>();
    Workspace scratch(vote);
    expect_alike(memory, wrong, right, {&colsum, &of_chunk}, [&] { return h2o::cuda::run(vote); });
}

void test_lengths(const Case& c, std::mt19937& random) {
    name_case("bounds of a length", c, "");
    const h2o_shape s = c.shape;
    const size_t d = size_t(s.head_size);
    for (const int n : {1, kTokens}) {
        Numbers q(n * s.query_heads * d, s.dtype), k(kRows * s.kv_heads * d, s.dtype),
            v(kRows * s.kv_heads * d, s.dtype);
        for (Numbers* numbers : {&q, &k, &v}) fill_normal(*numbers, s.dtype, 1, random);
        const h2o_kv kv = cache_of(k, v, kRows);
        Buffer length(8, false), o(n * s.query_heads * d * size_of(s.dtype), true);
        auto call = call_of<h2o::calls::CachedAttention>(s, &kv);
        call.n = n, call.q = q.buffer.device(), call.length = length.device<int64_t>(), call.o = o.device();
        Workspace workspace(call);
        for (const auto& [wrong, right] : {std::pair<int64_t, int64_t>(INT64_MAX, kRows),
                                           {kRows + 1, kRows},
                                           {INT64_MIN, n},
                                           {int64_t{1} << 32, kRows},
                                           {0, n}})
            expect_alike<int64_t>(length, {wrong}, {right}, {&o}, [&] { return h2o::cuda::run(call); });
    }
}

void test_selections(std::mt19937& random) {
    context = "bounds of a selection";
    constexpr int kHeads = 2, kLocal = 4, kHeavy = 6;
    Numbers score(kRows * kHeads, H2O_F32);
    fill_normal(score, H2O_F32, 1, random);
    Buffer memory(kHeads * kSlots * 4, false), range(16, false), next(kHeads * (kLocal + kHeavy) * 4, true);
    h2o::calls::MemorySelect selection;
    selection.Hs = kHeads, selection.cap = kRows, selection.Mp = kSlots, selection.local = kLocal;
    selection.M = kLocal + kHeavy, selection.score = score.buffer.device<float>();
    selection.memory = memory.device<int32_t>(), selection.chunk_range = range.device<int64_t>();
    selection.memory_next = next.device<int32_t>();
    const auto select = [&] { return h2o::cuda::run(selection); };
    std::vector<int32_t> wrong, right;
    for (int i = 0; i < kHeads * kSlots; ++i) {
        wrong.push_back(i % 2 ? INT_MIN + i : i % kSlots);
        right.push_back(i % 2 ? kRows - 1 : i % kSlots);
    }
    const std::vector<int64_t> bounds = {20, 35};
    std::memcpy(range.host().data(), bounds.data(), 16);
    range.reset();
    expect_alike(memory, wrong, right, {&next}, select);
    Buffer values(kHeads * kSlots * 4, false), set_scores(kHeads * (kLocal + kHeavy) * 4, true);
    values.reset();
    h2o::calls::MemoryStep step;
    step.Hs = kHeads, step.cap = kRows, step.Mp = kSlots, step.local = kLocal, step.M = kLocal + kHeavy;
    step.start = 20, step.stop = 35, step.memory = selection.memory, step.values = values.device<float>();
    step.add = 1, step.score = score.buffer.device<float>(), step.memory_next = selection.memory_next;
    step.scores = set_scores.device<float>();
    expect_alike(memory, wrong, right, {&next, &set_scores}, [&] { return h2o::cuda::run(step); });
    expect_alike<int64_t>(range, {INT64_MIN, INT64_MAX}, {0, kRows}, {&next}, select);
    expect_alike<int64_t>(range, {20, kRows + 7}, {20, kRows}, {&next}, select);
    // The end before the beginning: too few candidates, so that places stay as they are.
    for (const int64_t stop : {int64_t{-5}, int64_t{10}}) {
        const int64_t backwards[] = {20, stop};
        std::memcpy(range.host().data(), backwards, 16);
        range.reset();
        run_twice({&next}, select);
    }
}

// Starts, lengths and lists of the operators of pages.
void test_blocks(const Case& c, std::mt19937& random) {
    name_case("bounds of blocks", c, "");
    const h2o_shape s = c.shape;
    constexpr int kSize = 8, kBlocks = kRows / kSize, kBudget = 4;
    const size_t d = size_t(s.head_size), numbers = kBlocks * s.kv_heads * d;
    Numbers q(s.query_heads * d, s.dtype), k(kRows * s.kv_heads * d, s.dtype),
        v(kRows * s.kv_heads * d, s.dtype), low(numbers, H2O_F32), high(numbers, H2O_F32);
    for (Numbers* all : {&q, &k, &v}) fill_normal(*all, s.dtype, 1, random);
    for (Numbers* all : {&low, &high}) fill_normal(*all, H2O_F32, 1, random);
    const h2o_kv kv = cache_of(k, v, kRows);
    const float *a = low.buffer.device<float>(), *b = high.buffer.device<float>();
    Buffer at(16, false), next[2] = {{numbers * 4, true}, {numbers * 4, true}};
    const int64_t *start = at.device<int64_t>(), *length = start + 1;
    auto bound = call_of<h2o::calls::PageBounds>(s, &kv);
    bound.page_size = kSize, bound.Nb = kBlocks, bound.k_min = a, bound.k_max = b;
    bound.k_min_next = next[0].device<float>(), bound.k_max_next = next[1].device<float>();
    const int64_t rows[] = {0, kRows};
    bound.start = start, bound.length = length;
    bound.start_on_host = rows, bound.length_on_host = rows + 1;
    expect_alike<int64_t>(at, {INT64_MIN, INT64_MAX}, {0, kRows}, {&next[0], &next[1]},
                          [&] { return h2o::cuda::run(bound); });

    Buffer list(s.score_heads * kBudget * 4, true), o(q.exact.size() * size_of(s.dtype), true);
    auto select = call_of<h2o::calls::PageSelect>(s);
    select.q = q.buffer.device(), select.length = start, select.page_size = kSize, select.Nb = kBlocks;
    select.k_min = a, select.k_max = b, select.M = kBudget, select.page_list = list.device<int32_t>();
    Workspace workspace(select);
    for (const auto& [wrong, right] : {std::pair<int64_t, int64_t>(INT64_MAX, kRows), {INT64_MIN, 1}})
        expect_alike<int64_t>(at, {wrong}, {right}, {&list}, [&] { return h2o::cuda::run(select); });
    std::vector<int32_t> wrong, right;
    for (int i = 0; i < s.score_heads; ++i) {
        for (const int32_t page : {0, 2, -1, INT_MAX}) wrong.push_back(page);
        for (const int32_t page : {0, 2, INT_MIN, kBlocks - 1}) right.push_back(page);
    }
    const int64_t whole = kRows;
    std::memcpy(at.host().data(), &whole, 8);
    at.reset();
    auto attention = call_of<h2o::calls::PageAttention>(s, &kv);
    attention.q = q.buffer.device(), attention.length = start, attention.page_size = kSize;
    attention.M = kBudget, attention.page_list = list.device<int32_t>(), attention.o = o.device();
    Workspace parts(attention);
    expect_alike(list, wrong, right, {&o}, [&] { return h2o::cuda::run(attention); });
}

// Lists of candidates and lengths that nobody filled: what is chosen may be anything, no access is.
void test_candidate_lists(const Case& c, std::mt19937& random) {
    name_case("bounds of candidates", c, "");
    const size_t row = size_t(c.shape.kv_heads) * size_t(c.shape.head_size);
    Numbers q(kTokens * size_t(c.shape.query_heads * c.shape.head_size), c.shape.dtype),
        k(kRows * row, c.shape.dtype), v(kRows * row, c.shape.dtype);
    for (Numbers* all : {&q, &k, &v}) fill_normal(*all, c.shape.dtype, 1, random);
    const h2o_kv kv = cache_of(k, v, kRows);
    constexpr int kListed = 300;  // so that there is a sample
    std::vector<int32_t> entries;
    for (int i = 0; i < c.shape.score_heads * kListed / 3; ++i)
        for (const int32_t entry : {INT_MAX, INT_MIN, -1}) entries.push_back(entry);
    Buffer list(entries.size() * 4, false), past(8, false), begin(8, false),
        chosen(size_t(c.shape.score_heads) * 3 * 4, true);
    fill_ints(list, entries);
    auto vote = call_of<h2o::calls::QuerySelect>(c.shape, &kv);
    vote.n = vote.tile = kTokens, vote.t = vote.stride = 1, vote.q = q.buffer.device();
    vote.Mp = kListed, vote.Hl = c.shape.score_heads, vote.M = 3, vote.reach = 2, vote.local = 1;
    vote.heavy = 2;
    Workspace workspace(vote);
    vote.past = past.device<int64_t>(), vote.first = begin.device<int64_t>();
    vote.candidates = list.device<int32_t>(), vote.memory_next = chosen.device<int32_t>();
    for (const int64_t length : {INT64_MIN, int64_t{kRows}, INT64_MAX})
        for (const int64_t first : {INT64_MIN, int64_t{kRows}, INT64_MAX}) {
            std::memcpy(past.host().data(), &length, 8);
            std::memcpy(begin.host().data(), &first, 8);
            past.reset();
            begin.reset();
            run_twice({&chosen}, [&] { return h2o::cuda::run(vote); });
        }
}

}  // namespace

void test_bounds(const Options& options) {
    std::mt19937 random(options.seed + 6);
    for (const h2o_dtype dtype : {H2O_F16, H2O_F32}) {
        const Case grouped{{4, 2, 2, 64, 0.125f, dtype, 0, 0, 0}, 1},
            by_query{{4, 2, 4, 32, 0.125f, dtype, 0, 0, 0}, 1};
        for (const Case& c : {grouped, by_query}) {
            // Of few cases, each with numbers of its own.
            if (options.small && (c.shape.head_size == 64) != (dtype == H2O_F16)) continue;
            test_memory_entries(c, random);
            test_candidate_lists(c, random);
        }
        test_lengths(grouped, random);
        test_blocks(grouped, random);
    }
    test_selections(random);
}

}  // namespace test
