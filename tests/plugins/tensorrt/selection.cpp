// Votes for cache rows, and the memory that they select.
#include <algorithm>

#include "checks.h"

namespace conformance {
namespace {

using test::Reference;

// A tile's memory from what its votes give the candidates: 4 rows before `past`, and the 6 best of the
// others.
std::vector<int32_t> chosen(const std::vector<int32_t>& candidates, const double* given, int past) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (int j = 0; j < kSlots; ++j) {
        double score = given[j];
        for (int other = 0; other < kSlots; ++other)
            if (std::abs(candidates[other] - candidates[j]) == 1) score += given[other] / 4;
        if (candidates[j] < past - 4) ranked.emplace_back(-score, candidates[j]);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> rows;
    for (int j = 0; j < 6; ++j) rows.push_back(ranked[size_t(j)].second);
    std::sort(rows.begin(), rows.end());
    for (int i = past - 4; i < past; ++i) rows.push_back(i);
    return rows;
}

}  // namespace

void check_candidate_score(Trial& t) {
    t.run();
    const auto key = [&](int set, int j) {
        return j < kSlots ? SetMajor{t.in(2)}(set, j) : TokenMajor{t.in(1)}(set, j - kSlots);
    };
    const auto [exact, low] = both(t.c, t.in(0), 5, kSlots + kN, key, no_value,
                                   [](int i, int j) { return j - kSlots <= kN - 5 + i; });
    const auto part = [&](const Reference& r, int first, int count) {
        std::vector<double> values;
        for (int set = 0; set < kKvHeads; ++set)
            for (int j = 0; j < count; ++j)
                values.push_back(r.colsum[size_t(set) * (kSlots + kN) + first + j]);
        return first ? test::token_major(values, kKvHeads, count) : values;
    };
    t.compare("score_mem", 0, part(exact, 0, kSlots), part(low, 0, kSlots));
    t.compare("score_chunk", 1, part(exact, kSlots, kN), part(low, kSlots, kN));
}

void check_memory_select(Trial& t) {
    t.set(1, t.memory);
    t.set(2, std::vector<int64_t>{60, 85});
    t.run();
    const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
    for (int set = 0; set < kKvHeads; ++set) {
        std::vector<int32_t> all(t.memory.begin() + set * kSlots, t.memory.begin() + (set + 1) * kSlots);
        for (int i = 60; i < 81; ++i) all.push_back(i);
        std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
            return t.in(0)[size_t(a) * kKvHeads + set] > t.in(0)[size_t(b) * kKvHeads + set];
        });
        all.resize(8);
        for (int i = 81; i < 85; ++i) all.push_back(i);
        std::sort(all.begin(), all.end());
        EXPECT(std::equal(all.begin(), all.end(), got.begin() + set * 12));
    }
}

void check_query_select(Trial& t) {
    const int64_t past[] = {60, 63, 70}, first[] = {60, 66, 78};
    Memory lists;
    for (int tile = 0; tile < 3; ++tile) lists.insert(lists.end(), t.memory.begin(), t.memory.end());
    t.set(2, lists);
    t.set(3, std::vector<int64_t>(past, past + 3));
    t.set(4, std::vector<int64_t>(first, first + 3));
    t.run();
    const std::vector<int32_t> got = t.outputs[0]->values<int32_t>();
    h2o_shape alone = t.c.shape;
    alone.score_heads = kHeads;
    for (int tile = 0; tile < 3; ++tile) {
        // The heads of a set vote by different rows: of each run of 4 rows, the first and the third. A vote's
        // denominator counts all of so few candidates.
        std::vector<double> given(kKvHeads * kSlots);
        const int end = std::min(tile * 8 + 8, kN);
        for (int run = tile * 8; run < end; run += 4)
            for (int head = 0; head < kHeads; ++head) {
                const int row = std::min(run + head % 2 * 2, end - 1), set = head / 2;
                const int own = static_cast<int>(first[tile] - past[tile]) + row - tile * 8 + 1;
                const auto q = t.in(0).begin() + row * kHeads * kD;
                const auto key = [&](int, int j) {
                    return j < kSlots ? TokenMajor{t.in(1), &t.memory}(set, j)
                                      : TokenMajor{t.in(1)}(set, static_cast<int>(past[tile]) + j - kSlots);
                };
                const Reference r = test::attend(alone, {q, q + kHeads * kD}, 1, kSlots + own, key, no_value,
                                                 always, test::Precision::kExact);
                for (int j = 0; j < kSlots; ++j)
                    given[size_t(set * kSlots + j)] += r.colsum[size_t(head * (kSlots + own) + j)];
            }
        for (int set = 0; set < kKvHeads; ++set) {
            const std::vector<int32_t> own(t.memory.begin() + set * kSlots,
                                           t.memory.begin() + (set + 1) * kSlots);
            const auto expected = chosen(own, &given[size_t(set) * kSlots], static_cast<int>(past[tile]));
            EXPECT(std::equal(expected.begin(), expected.end(), got.begin() + (tile * kKvHeads + set) * 10));
        }
    }
}

}  // namespace conformance
