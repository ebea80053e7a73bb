// MemoryFusedAttention and CachedCandidateScore.
#include "support.h"

namespace h2o::test {
namespace {

class Memory : public EveryIsa {
  protected:
    // The cache rows that a query head's memory names.
    static std::vector<int64_t> rows_of(const Shape& shape, const std::vector<int32_t>& memory, int64_t slots,
                                        int64_t head) {
        const int64_t hs = head / (shape.query_heads() / shape.score_heads());
        return {memory.begin() + hs * slots, memory.begin() + (hs + 1) * slots};
    }

    // A chunk's intra state fused with its memory, against the softmax over both sets of keys at once: the
    // chunk is the cache's last n rows.
    void fused(const Shape& shape, int64_t n, int64_t slots, uint32_t seed) const {
        SCOPED_TRACE(testing::Message() << "group " << shape.group << " d " << shape.d << " f16 "
                                        << shape.dtype << " n " << n << " slots " << slots);
        const int64_t past = slots + 9, cap = past + n;
        const Stored q = Stored::random(shape.dtype, shape.q_size(n), seed);
        const Stored k = Stored::random(shape.dtype, shape.k_size(cap), seed + 1);
        const Stored v = Stored::random(shape.dtype, shape.k_size(cap), seed + 2);
        const std::vector<int32_t> memory = random_memory(shape, slots, past, seed);
        const h2o_shape c = shape.c();
        const Context holder = context();
        State state(shape, n);
        const size_t skip = shape.k_size(past) * (shape.dtype == H2O_F16 ? 2 : 4);
        ASSERT_EQ(h2o_cpu_chunked_intra_attention(holder.get(), &c, n, n, q.data(),
                                                  static_cast<const char*>(k.data()) + skip,
                                                  static_cast<const char*>(v.data()) + skip, state.o.data(),
                                                  state.m.data(), state.l.data(), nullptr),
                  H2O_OK);
        Floats colsum(static_cast<size_t>(shape.score_heads() * slots), -7.0f);
        const h2o_kv kv = cache_of(k, v, cap);
        ASSERT_EQ(
            h2o_cpu_memory_fused_attention(holder.get(), &c, n, slots, q.data(), &kv, memory.data(),
                                           state.o.data(), state.m.data(), state.l.data(), colsum.data()),
            H2O_OK);
        StateErrors errors;
        Doubles sums(colsum.size());
        for (int64_t token = 0; token < n; ++token) {
            for (int64_t head = 0; head < shape.query_heads(); ++head) {
                std::vector<int64_t> keys = rows_of(shape, memory, slots, head);
                const Exact own = attend(shape, q, token, head, k, v, keys);
                const int64_t hs = head / (shape.query_heads() / shape.score_heads());
                for (int64_t i = 0; i < slots; ++i) {
                    sums[static_cast<size_t>(hs * slots + i)] += own.p[static_cast<size_t>(i)];
                }
                for (int64_t key : range(past, past + token + 1)) keys.push_back(key);
                errors.add(shape, state, token, head, attend(shape, q, token, head, k, v, keys));
            }
        }
        errors.expect_good(shape.dtype);
        Errors sum_errors;
        for (size_t i = 0; i < sums.size(); ++i) sum_errors.add(static_cast<double>(colsum[i]), sums[i]);
        sum_errors.expect_good(H2O_F32, "colsum");
    }
};

TEST_P(Memory, FusedEqualsOneSoftmaxOverBoth) {
    uint32_t seed = 11;
    for (int64_t d : {8, 40, 64}) {
        for (int64_t group : {1, 4, 5}) {
            for (h2o_dtype dtype : {H2O_F32, H2O_F16}) {
                fused({2, group, d, dtype}, 1, 17, seed += 3);
                fused({2, group, d, dtype}, 61, 30, seed += 3);
            }
        }
    }
    fused({2, 3, 16, H2O_F32, true}, 50, 21, 5);  // a memory for every query head
    fused({1, 8, 16, H2O_F32}, 260, 40, 6);       // several parts
}

TEST_P(Memory, FusesIntoAnEmptyStateWithoutReadingIt) {
    const Shape shape{1, 2, 16, H2O_F32};
    const int64_t n = 5, slots = 12;
    const Stored q = Stored::random(H2O_F32, shape.q_size(n), 1),
                 k = Stored::random(H2O_F32, shape.k_size(slots), 2);
    const std::vector<int32_t> memory = random_memory(shape, slots, slots, 1);
    const h2o_shape c = shape.c();
    State state(shape, n);
    for (size_t i = 0; i < state.o.size(); ++i) state.o.set(i, NAN);
    std::fill(state.m.begin(), state.m.end(), -HUGE_VALF);
    std::fill(state.l.begin(), state.l.end(), 0.0f);
    const h2o_kv kv = cache_of(k, k, slots);
    ASSERT_EQ(h2o_cpu_memory_fused_attention(context().get(), &c, n, slots, q.data(), &kv, memory.data(),
                                             state.o.data(), state.m.data(), state.l.data(), nullptr),
              H2O_OK);
    StateErrors errors;
    for (int64_t token = 0; token < n; ++token) {
        for (int64_t head = 0; head < 2; ++head) {
            errors.add(shape, state, token, head, attend(shape, q, token, head, k, k, range(0, slots)));
        }
    }
    errors.expect_good(H2O_F32);
}

TEST_P(Memory, CandidateScoresAreTheJointSoftmax) {
    for (int64_t slots : {0, 19}) {
        const Shape shape{2, 3, 24, H2O_F32};
        const int64_t w = 20, n = 45, cap = 60;
        // Memory and chunk side by side, so that one list of rows names all keys.
        const Stored k = Stored::random(H2O_F32, shape.k_size(cap + n), 2),
                     q = Stored::random(H2O_F32, shape.q_size(w), 1);
        const std::vector<int32_t> memory = random_memory(shape, slots, cap, 9);
        Floats score_memory(static_cast<size_t>(2 * slots)), score_chunk(static_cast<size_t>(n * 2));
        const h2o_shape c = shape.c();
        const float* chunk = static_cast<const float*>(k.data()) + shape.k_size(cap);
        const h2o_kv kv = cache_of(k, k, cap);
        ASSERT_EQ(h2o_cpu_candidate_score(context().get(), &c, w, n, slots, q.data(), chunk, &kv,
                                          memory.data(), score_memory.data(), score_chunk.data()),
                  H2O_OK);
        Doubles expected(static_cast<size_t>(2 * (slots + n)));
        for (int64_t token = 0; token < w; ++token) {
            for (int64_t head = 0; head < shape.query_heads(); ++head) {
                std::vector<int64_t> keys = rows_of(shape, memory, slots, head);
                for (int64_t key : range(cap, cap + n - w + token + 1)) keys.push_back(key);
                const Exact exact = attend(shape, q, token, head, k, k, keys);
                for (size_t i = 0; i < keys.size(); ++i) {
                    expected[static_cast<size_t>(head / 3 * (slots + n)) + i] += exact.p[i];
                }
            }
        }
        Errors errors;
        for (int64_t head = 0; head < 2; ++head) {
            for (int64_t i = 0; i < slots + n; ++i) {
                const float actual = i < slots ? score_memory[static_cast<size_t>(head * slots + i)]
                                               : score_chunk[static_cast<size_t>((i - slots) * 2 + head)];
                errors.add(static_cast<double>(actual),
                           expected[static_cast<size_t>(head * (slots + n) + i)]);
            }
        }
        errors.expect_good(H2O_F32, "votes");
    }
}

H2O_EVERY_ISA(Memory);

}  // namespace
}  // namespace h2o::test
