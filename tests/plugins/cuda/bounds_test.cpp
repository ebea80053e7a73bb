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
    expect_alike(memory, wrong, right, {&k_mem, &v_mem}, [&] {
        return h2o_cuda_memory_gather(nullptr, &s, kSlots, &kv, entries, k_mem.device(), v_mem.device());
    });

    StateBuffers state(s, kTokens, false);
    random_state(s, kTokens, false, state, random);
    const size_t bytes = h2o_cuda_memory_attention_workspace(&s, kTokens, kSlots);
    Buffer workspace(bytes, true);
    expect_alike(memory, wrong, right, {&state.o, &state.m, &state.l, &colsum}, [&] {
        const h2o_cuda_state both = state.pointers();
        return h2o_cuda_memory_fused_attention(nullptr, &s, kTokens, kSlots, q.buffer.device(), &kv, entries,
                                               &both, &both, colsum.device<float>(), workspace.device(),
                                               bytes);
    });

    const size_t votes = h2o_cuda_candidate_score_workspace(&s, kTokens, kTokens, kSlots);
    Buffer scratch(votes, true);
    expect_alike(memory, wrong, right, {&colsum, &of_chunk}, [&] {
        return h2o_cuda_candidate_score(nullptr, &s, kTokens, kTokens, kSlots, q.buffer.device(),
                                        k.buffer.device(), &kv, entries, colsum.device<float>(),
                                        of_chunk.device<float>(), scratch.device(), votes);
    });
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
        const size_t bytes = h2o_cuda_cached_attention_workspace(&s, n, kRows);
        Buffer length(8, false), o(n * s.query_heads * d * size_of(s.dtype), true), workspace(bytes, true);
        for (const auto& [wrong, right] : {std::pair<int64_t, int64_t>(INT64_MAX, kRows),
                                           {kRows + 1, kRows},
                                           {INT64_MIN, n},
                                           {int64_t{1} << 32, kRows},
                                           {0, n}})
            expect_alike<int64_t>(length, {wrong}, {right}, {&o}, [&] {
                return h2o_cuda_cached_attention(nullptr, &s, n, q.buffer.device(), &kv,
                                                 length.device<int64_t>(), o.device(), workspace.device(),
                                                 bytes);
            });
    }
}

void test_selections(std::mt19937& random) {
    context = "bounds of a selection";
    constexpr int kHeads = 2, kLocal = 4, kHeavy = 6;
    Numbers score(kRows * kHeads, H2O_F32);
    fill_normal(score, H2O_F32, 1, random);
    Buffer memory(kHeads * kSlots * 4, false), range(16, false), next(kHeads * (kLocal + kHeavy) * 4, true);
    const auto select = [&] {
        return h2o_cuda_memory_select(nullptr, kHeads, kRows, kSlots, kLocal, kHeavy,
                                      score.buffer.device<float>(), memory.device<int32_t>(),
                                      range.device<int64_t>(), next.device<int32_t>());
    };
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
    expect_alike(memory, wrong, right, {&next, &set_scores}, [&] {
        const h2o_cuda_next_memory to = {next.device<int32_t>(), nullptr, nullptr,
                                         set_scores.device<float>()};
        return h2o_cuda_memory_step(nullptr, kHeads, kRows, kSlots, kLocal, kHeavy, 20, 35,
                                    memory.device<int32_t>(), values.device<float>(), 0,
                                    score.buffer.device<float>(), &to);
    });
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
    expect_alike<int64_t>(at, {INT64_MIN, INT64_MAX}, {0, kRows}, {&next[0], &next[1]}, [&] {
        return h2o_cuda_page_bounds(nullptr, &s, &kv, start, length, kRows, kSize, kBlocks, a, b,
                                    next[0].device<float>(), next[1].device<float>());
    });

    const size_t bytes = h2o_cuda_page_select_workspace(&s, kBlocks);
    Buffer list(s.score_heads * kBudget * 4, true), workspace(bytes, true),
        o(q.exact.size() * size_of(s.dtype), true);
    for (const auto& [wrong, right] : {std::pair<int64_t, int64_t>(INT64_MAX, kRows), {INT64_MIN, 1}})
        expect_alike<int64_t>(at, {wrong}, {right}, {&list}, [&] {
            return h2o_cuda_page_select(nullptr, &s, q.buffer.device(), start, kSize, kBlocks, a, b, kBudget,
                                        list.device<int32_t>(), workspace.device(), bytes);
        });
    std::vector<int32_t> wrong, right;
    for (int i = 0; i < s.score_heads; ++i) {
        for (const int32_t page : {0, 2, -1, INT_MAX}) wrong.push_back(page);
        for (const int32_t page : {0, 2, INT_MIN, kBlocks - 1}) right.push_back(page);
    }
    const int64_t whole = kRows;
    std::memcpy(at.host().data(), &whole, 8);
    at.reset();
    Buffer parts(h2o_cuda_page_attention_workspace(&s, kSize, kBudget), true);
    expect_alike(list, wrong, right, {&o}, [&] {
        return h2o_cuda_page_attention(nullptr, &s, q.buffer.device(), &kv, start, kSize, kBudget,
                                       list.device<int32_t>(), o.device(), parts.device(),
                                       parts.host().size());
    });
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
    h2o::calls::QuerySelect vote;
    vote.shape = c.shape;
    vote.n = vote.tile = kTokens, vote.cap = kRows, vote.t = vote.stride = 1;
    vote.Mp = kListed, vote.Hl = c.shape.score_heads, vote.M = 3, vote.reach = 2, vote.local = 1,
    vote.heavy = 2;
    const size_t bytes = h2o::cuda::workspace(vote);
    Buffer workspace(bytes, true);
    vote.workspace = workspace.device(), vote.workspace_bytes = bytes;
    vote.q = q.buffer.device(), vote.kv = &kv;
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
            test_memory_entries(c, random);
            test_candidate_lists(c, random);
        }
        test_lengths(grouped, random);
        test_blocks(grouped, random);
    }
    test_selections(random);
}

}  // namespace test
