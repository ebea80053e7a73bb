// MemorySelect against a plain sort, with ties, sinks, negligible scores, short histories and long ones.

#include "cases.h"

namespace test {
namespace {

struct Selection {
    int heads, capacity, start, stop, previous, local, heavy, sink;
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
        return i < s.sink ? INFINITY : own >= 1e-30f ? own : 0.f;
    };
    std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
        const bool sa = a < s.sink, sb = b < s.sink;
        return sa != sb ? sa : value(a) > value(b);
    });
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
    run_twice({&next, &last, &set, &kept, &score.buffer}, [&] {
        const h2o_cuda_next_memory to = {next.device<int32_t>(), last.device<int32_t>(),
                                         set.device<int32_t>(), kept.device<float>()};
        return h2o_cuda_memory_step(nullptr, s.heads, s.capacity, s.previous, s.local, s.heavy, s.sink,
                                    s.start, s.stop, memory_buffer.device<int32_t>(),
                                    kind ? values.buffer.device<float>() : nullptr, kind == 2,
                                    score.buffer.device<float>(), &to);
    });
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
    std::snprintf(name, sizeof name, "select Hs=%d range=%d..%d Mp=%d L=%d H=%d sink=%d levels=%d", s.heads,
                  s.start, s.stop, s.previous, s.local, s.heavy, s.sink, s.levels);
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
    run_twice({&next}, [&] {
        return h2o_cuda_memory_select(nullptr, s.heads, s.capacity, s.previous, s.local, s.heavy, s.sink,
                                      score.buffer.device<float>(), memory_buffer.device<int32_t>(),
                                      range.device<int64_t>(), next.device<int32_t>());
    });
    std::vector<int32_t> expected;
    for (int h = 0; h < s.heads; ++h) {
        const std::vector<int32_t> one = expected_memory(s, h, values, memory);
        expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT(next.values<int32_t>() == expected);
    for (const int values : {0, 1, 2}) test_step(s, score, memory, memory_buffer, values, random);
}

}  // namespace

void test_select(const Options& options) {
    std::mt19937 random(options.seed + 4);
    const auto between = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    test_selection({2, 64, 0, 40, 0, 8, 8, 0, 0}, random);
    test_selection({2, 64, 0, 40, 0, 8, 32, 4, 2}, random);           // exactly as many candidates as places
    test_selection({3, 64, 0, 40, 0, 16, 0, 4, 2}, random);           // no heavy hitters
    test_selection({1, 64, 0, 40, 0, 0, 16, 30, 1}, random);          // more sinks than places
    test_selection({2, 300, 200, 210, 64, 16, 16, 3, 3}, random);     // a chunk shorter than the local window
    test_selection({2, 20000, 0, 20000, 0, 64, 200, 0, 50}, random);  // more candidates than are kept at hand
    for (int i = 0; i < (options.small ? 4 : 60); ++i) {
        Selection s;
        s.heads = between(1, options.small ? 2 : 8);
        s.start = between(0, 3000);
        s.stop = s.start + between(1, 1500);
        s.previous = between(0, std::min(s.start, 600));
        const int total = between(1, s.previous + s.stop - s.start);
        s.local = between(0, total);
        s.heavy = total - s.local;
        s.sink = between(0, 20);
        s.levels = i % 3 == 0 ? 0 : between(1, 40);
        s.capacity = s.stop + 10;
        test_selection(s, random);
    }
}

}  // namespace test
