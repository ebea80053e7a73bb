#include "support.h"

namespace h2o::test {
namespace {

struct SelectCase {
    int64_t heads, previous, start, stop, local, slots;
};

// Sorts all candidates; the kernel must not.
std::vector<int32_t> expected(const SelectCase& c, const Floats& score, const std::vector<int32_t>& memory,
                              int64_t head) {
    const int64_t first_local = std::max(c.start, c.stop - c.local);
    std::vector<int32_t> others(memory.begin() + head * c.previous, memory.begin() + (head + 1) * c.previous);
    for (int64_t i = c.start; i < first_local; ++i) others.push_back(static_cast<int32_t>(i));
    auto value = [&](int32_t i) {
        const float s = score[static_cast<size_t>(i * c.heads + head)];
        return s >= 1e-30f ? s : 0.0f;
    };
    std::sort(others.begin(), others.end(),
              [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
    std::vector<int32_t> out(others.begin(), others.begin() + (c.slots - (c.stop - first_local)));
    for (int64_t i = first_local; i < c.stop; ++i) out.push_back(static_cast<int32_t>(i));
    std::sort(out.begin(), out.end());
    return out;
}

TEST(Select, EqualsAFullSort) {
    std::mt19937 bits(1);
    const Context holder = make(2, nullptr);
    for (int round = 0; round < 200; ++round) {
        auto below = [&](int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint32_t>(n)); };
        SelectCase c{};
        c.heads = 1 + below(3);
        c.previous = below(40);
        c.start = c.previous + below(20);
        c.stop = c.start + below(60);
        c.local = below(30);
        const int64_t least = std::min(c.local, c.stop - c.start);
        c.slots = std::max(c.local, least + below(c.previous + c.stop - c.start - least + 1));
        if (c.slots > c.previous + c.stop - c.start) continue;
        const Shape shape{c.heads, 1, 8, H2O_F32};
        const std::vector<int32_t> memory = random_memory(shape, c.previous, c.start, bits());
        Floats score(static_cast<size_t>((c.stop + 2) * c.heads));
        for (float& s : score)
            s = below(4) == 0 ? 1e-35f * static_cast<float>(below(3)) : static_cast<float>(below(5));
        std::vector<int32_t> out(static_cast<size_t>(c.heads * c.slots) + 1);  // never a null pointer
        ASSERT_EQ(h2o_cpu_memory_select(holder.get(), c.heads, c.stop + 2, score.data(), c.previous,
                                        memory.data(), c.start, c.stop, c.local, c.slots, out.data()),
                  H2O_OK);
        for (int64_t head = 0; head < c.heads; ++head) {
            const std::vector<int32_t> got(out.begin() + head * c.slots, out.begin() + (head + 1) * c.slots);
            ASSERT_EQ(got, expected(c, score, memory, head)) << "round " << round << " head " << head;
        }
    }
}

TEST(Select, NanIsNoScore) {
    const Floats score = {NAN, 1.0f, NAN, 0.5f, 0.0f};
    int32_t out[2] = {-1, -1};
    ASSERT_EQ(h2o_cpu_memory_select(make(1, nullptr).get(), 1, 5, score.data(), 0, nullptr, 0, 5, 0, 2, out),
              H2O_OK);
    EXPECT_EQ(out[0], 1);
    EXPECT_EQ(out[1], 3);
}

}  // namespace
}  // namespace h2o::test
