// CandidateScore, OnlineSoftmaxFusion and what moves scores, rows and numbers, against the float64 reference.

#include "cases.h"

namespace test {
namespace {

void test_candidate(const Case& c, int window, int n, int slots, bool gathered, std::mt19937& random) {
    name_case("candidate", c, "w=%d n=%d M=%d%s", window, n, slots, gathered ? " gathered" : " by index");
    const h2o_shape s = c.shape;
    const int d = s.head_size, sets = s.score_heads, per_head = sets / s.kv_heads, capacity = slots * 2 + 3;
    Numbers q(size_t(window) * s.query_heads * d, s.dtype), k(size_t(n) * s.kv_heads * d, s.dtype),
        cache(size_t(capacity) * s.kv_heads * d, s.dtype), k_mem(size_t(sets) * slots * d, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    fill_normal(k, s.dtype, 1, random);
    fill_normal(cache, s.dtype, 1, random);
    fill_normal(k_mem, s.dtype, 1, random);
    const std::vector<int32_t> memory = random_memory(sets, slots, capacity, random);
    Buffer memory_buffer(memory.size() * 4, false), score_memory(size_t(sets) * slots * 4, true),
        score_chunk(size_t(sets) * n * 4, true);
    fill_ints(memory_buffer, memory);
    const h2o_kv kv = cache_of(cache, cache, capacity);
    const auto vote = [&](auto call) {
        call.w = window, call.n = n, call.M = slots, call.q_window = q.buffer.device();
        call.k = k.buffer.device(), call.score_mem = score_memory.device<float>();
        call.score_chunk = score_chunk.device<float>();
        Workspace workspace(call);
        run_twice({&score_memory, &score_chunk, &workspace}, [&] { return h2o::cuda::run(call); });
    };
    auto by_copy = call_of<h2o::calls::CandidateScore>(s);
    by_copy.k_mem = k_mem.buffer.device();
    auto by_index = call_of<h2o::calls::CachedCandidateScore>(s, &kv);
    by_index.memory = memory_buffer.device<int32_t>();
    gathered ? vote(by_copy) : vote(by_index);

    const auto key = [&](int set, int j) -> const double* {
        if (j >= slots) return &k.exact[(size_t(j - slots) * s.kv_heads + set / per_head) * d];
        if (gathered) return &k_mem.exact[(size_t(set) * slots + j) * d];
        return &cache.exact[(size_t(memory[size_t(set) * slots + j]) * s.kv_heads + set / per_head) * d];
    };
    const auto reference = [&](Precision precision) {
        return attend(
            s, q.exact, window, slots + n, key, [](int, int) -> const double* { return nullptr; },
            [&](int row, int j) { return j - slots <= n - window + row; }, precision);
    };
    const auto split = [&](const Reference& r, bool chunk) {
        std::vector<double> part;
        for (int set = 0; set < sets; ++set) {
            const double* row = &r.colsum[size_t(set) * (slots + n)];
            if (chunk)
                part.insert(part.end(), row + slots, row + slots + n);
            else
                part.insert(part.end(), row, row + slots);
        }
        return chunk ? token_major(part, sets, n) : part;
    };
    const Reference exact = reference(Precision::kExact);
    const Reference low = reference(yardstick(c));
    compare_to(c, "score_memory", download(score_memory, H2O_F32), split(exact, false), split(low, false));
    compare_to(c, "score_chunk", download(score_chunk, H2O_F32), split(exact, true), split(low, true));
}

void test_fusion(const Case& c, int n, std::mt19937& random) {
    name_case("fusion", c, "n=%d", n);
    const h2o_shape s = c.shape;
    StateBuffers a(s, n, false), b(s, n, false), none(s, n, false), out(s, n, true);
    const Reference x = random_state(s, n, true, a, random);
    Reference y = random_state(s, n, false, b, random);
    double any = 1000;  // an empty state's maximum may be anything
    for (size_t i = 0; i < x.l.size(); ++i)
        if (x.l[i] == 0) store(a.m.host(), i, H2O_F32, any);
    a.m.reset();
    auto call = call_of<h2o::calls::OnlineSoftmaxFusion>(s);
    call.n = n, call.o_a = a.o.device(), call.m_a = a.m.device<float>(), call.l_a = a.l.device<float>();
    call.o_b = b.o.device(), call.m_b = b.m.device<float>(), call.l_b = b.l.device<float>();
    out.receive(call);
    run_twice({&out.o, &out.m, &out.l}, [&] { return h2o::cuda::run(call); });
    const Reference expected = fuse(x, y, s.head_size, Precision::kExact);
    compare_state(c, out, expected, fuse(x, y, s.head_size, yardstick(c)));

    a.receive(call);
    run_twice({&a.o, &a.m, &a.l}, [&] { return h2o::cuda::run(call); });
    EXPECT(a.o.download() == out.o.download() && a.m.download() == out.m.download() &&
           a.l.download() == out.l.download());

    // Two empty states fuse to an empty one, with output 0.
    for (StateBuffers* state : {&a, &b}) {
        std::fill(state->o.host().begin(), state->o.host().end(), static_cast<unsigned char>(0xff));
        for (size_t i = 0; i < size_t(n) * s.query_heads; ++i) {
            double m = -INFINITY, l = 0;
            store(state->m.host(), i, H2O_F32, m);
            store(state->l.host(), i, H2O_F32, l);
        }
    }
    out.receive(call);
    run_twice({&a.o, &a.m, &a.l, &b.o, &b.m, &b.l, &out.o, &out.m, &out.l},
              [&] { return h2o::cuda::run(call); });
    for (const double o : download(out.o, s.dtype)) EXPECT(o == 0);
    for (const double m : download(out.m, H2O_F32)) EXPECT(m == -INFINITY);
    for (const double l : download(out.l, H2O_F32)) EXPECT(l == 0);
}

void test_score_update(int heads, int slots, bool replace, std::mt19937& random) {
    const int capacity = slots + 50;
    Case c{{heads, heads, heads, 64, 1, H2O_F32, 0, 0, 0}, 1};
    name_case("score update", c, "M=%d replace=%d", slots, replace);
    Numbers score(size_t(capacity) * heads, H2O_F32), addend(size_t(heads) * slots, H2O_F32);
    fill_normal(score, H2O_F32, 1, random);
    fill_normal(addend, H2O_F32, 1, random);
    const std::vector<int32_t> memory = random_memory(heads, slots, capacity, random);
    Buffer memory_buffer(memory.size() * 4, false);
    fill_ints(memory_buffer, memory);
    auto call = call_of<h2o::calls::ScatterScores>(c.shape);
    call.M = slots, call.memory = memory_buffer.device<int32_t>(), call.add = !replace;
    call.values = addend.buffer.device<float>(), call.score = score.buffer.device<float>();
    run_twice({&score.buffer}, [&] { return h2o::cuda::run(call); });
    std::vector<double> expected = score.exact;
    for (int h = 0; h < heads; ++h)
        for (int j = 0; j < slots; ++j) {
            double& to = expected[size_t(memory[size_t(h) * slots + j]) * heads + h];
            to = replace ? addend.exact[size_t(h) * slots + j] : to + addend.exact[size_t(h) * slots + j];
        }
    compare("score", download(score.buffer, H2O_F32), expected, nullptr);
}

// The row of the position, and no other one; none beyond the cache.
void test_cache_append(const Case& c, int64_t position, std::mt19937& random) {
    const int64_t capacity = 5;
    name_case("cache append", c, "position=%d", int(position));
    const h2o_shape& s = c.shape;
    const size_t row = size_t(s.kv_heads) * s.head_size;
    Numbers k(row, s.dtype), v(row, s.dtype), k_cache(capacity * row, s.dtype),
        v_cache(capacity * row, s.dtype);
    for (Numbers* numbers : {&k, &v, &k_cache, &v_cache}) fill_normal(*numbers, s.dtype, 1, random);
    Buffer at(8, false);
    std::memcpy(at.host().data(), &position, 8);
    at.reset();
    const h2o_kv kv = cache_of(k_cache, v_cache, capacity);
    auto call = call_of<h2o::calls::CacheAppend>(s, &kv);
    call.n = 1, call.k = k.buffer.device(), call.v = v.buffer.device(), call.at = at.device<int64_t>();
    run_twice({&k_cache.buffer, &v_cache.buffer}, [&] { return h2o::cuda::run(call); });
    const auto expect = [&](const Numbers& one, Numbers& cache) {
        if (position >= 0 && position < capacity)
            std::copy(one.exact.begin(), one.exact.end(), cache.exact.begin() + position * row);
        EXPECT(download(cache.buffer, s.dtype) == cache.exact);
    };
    expect(k, k_cache);
    expect(v, v_cache);
}

void test_write_integers(int count) {
    context = "write integers, count=" + std::to_string(count);
    Buffer target(H2O_CUDA_MAX_INTEGERS * 8, true);
    std::vector<int64_t> values;
    run_twice({&target}, [&] {
        values.assign(count, 0);
        for (int i = 0; i < count; ++i) values[i] = (int64_t{1} << 40) * (i + 1) - 7;
        const h2o_status status =
            h2o_cuda_write_integers(nullptr, count, values.data(), target.device<int64_t>());
        values.assign(count, 0);  // the host's copy is of no more use
        return status;
    });
    for (int i = 0; i < H2O_CUDA_MAX_INTEGERS; ++i)
        EXPECT(target.values<int64_t>()[i] == (i < count ? (int64_t{1} << 40) * (i + 1) - 7 : -1));
}

}  // namespace

void test_candidates(const Options& options) {
    std::mt19937 random(options.seed + 2);
    const auto between = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    for (const Case& c : cases(options)) {
        const int most = options.small ? 100 : 600;
        for (int repeat = 0; repeat < (options.small ? 1 : 3); ++repeat) {
            const int n = between(1, most);
            test_candidate(c, between(1, std::min(n, 100)), n, between(1, most), repeat == 1, random);
        }
        test_candidate(c, 5, 40, 0, false, random);
    }
}

void test_rows(const Options& options) {
    std::mt19937 random(options.seed + 3);
    for (const Case& c : cases(options)) {
        test_fusion(c, options.small ? 5 : 131, random);
        for (const int64_t position : {-1, 0, 3, 4, 5}) test_cache_append(c, position, random);
    }
    for (const bool replace : {false, true}) {
        test_score_update(1, 1, replace, random);
        test_score_update(5, 333, replace, random);
    }
    for (const int count : {1, 3, H2O_CUDA_MAX_INTEGERS}) test_write_integers(count);
}

}  // namespace test
