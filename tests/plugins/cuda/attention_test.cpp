// ChunkedIntraAttention, MemoryAttention, MemoryFusedAttention, MemoryGather, CachedAttention and a decode
// step's attention against the float64 reference, over random shapes.

#include <algorithm>
#include <memory>

#include "cases.h"
#include "reference.h"

namespace test {
namespace {

// Random keys and values; those of latents are the keys.
struct Rows {
    const Case& c;
    Numbers k, own;

    template <class R>
    Rows(const Case& which, int count, R& random)
        : c(which),
          k(size_t(count) * c.shape.kv_heads * c.shape.head_size, c.shape.dtype),
          own(size_t(c.latent ? 1 : count) * c.shape.kv_heads * value_size(c.shape), c.shape.dtype) {
        fill_normal(k, c.shape.dtype, 1, random);
        fill_normal(own, c.shape.dtype, 1, random);
    }
    Numbers& values() { return c.latent ? k : own; }
    const double* key(int row, int head) const { return of(k, c.shape.head_size, row, head); }
    const double* value(int row, int head) const {
        return c.latent ? key(row, head) : of(own, value_size(c.shape), row, head);
    }

  private:
    const double* of(const Numbers& numbers, int size, int row, int head) const {
        return &numbers.exact[(size_t(row) * c.shape.kv_heads + head) * size];
    }
};

void test_intra(const Case& c, int n, int chunk, std::mt19937& random) {
    name_case("intra", c, "n=%d chunk=%d", n, chunk);
    const h2o_shape s = c.shape;
    const int d = s.head_size;
    Numbers q(size_t(n) * s.query_heads * d, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    Rows rows(c, n, random);
    Numbers &k = rows.k, &v = rows.values();
    StateBuffers state(s, n, true);
    Buffer colsum(size_t(n) * s.score_heads * 4, true);
    auto call = call_of<h2o::calls::ChunkedIntraAttention>(s);
    call.n = n, call.chunk_size = chunk, call.colsum = colsum.device<float>();
    call.q = q.buffer.device(), call.k = k.buffer.device(), call.v = v.buffer.device();
    state.receive(call);
    run_twice({&state.o, &state.m, &state.l, &colsum}, [&] { return h2o::cuda::run(call); });

    const int per_head = s.score_heads / s.kv_heads;
    const auto reference = [&](Precision precision) {
        return attend(
            s, q.exact, n, n, [&](int set, int j) { return rows.key(j, set / per_head); },
            [&](int set, int j) { return rows.value(j, set / per_head); },
            [&](int row, int j) { return j <= row && j / chunk == row / chunk; }, precision);
    };
    const Reference exact = reference(Precision::kExact);
    const Reference low = reference(yardstick(c));
    compare_state(c, state, exact, low);
    compare_to(c, "colsum", download(colsum, H2O_F32), token_major(exact.colsum, s.score_heads, n),
               token_major(low.colsum, s.score_heads, n));
}

void test_memory(const Case& c, int n, int slots, int capacity, bool empty_intra, std::mt19937& random) {
    name_case("memory", c, "n=%d M=%d cap=%d%s", n, slots, capacity, empty_intra ? " empty state" : "");
    const h2o_shape s = c.shape;
    const int d = s.head_size, dv = value_size(s), sets = s.score_heads, per_head = sets / s.kv_heads;
    Numbers q(size_t(n) * s.query_heads * d, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    Rows rows(c, capacity, random);
    Numbers &k = rows.k, &v = rows.values();
    const std::vector<int32_t> memory = random_memory(sets, slots, capacity, random);
    Buffer memory_buffer(memory.size() * 4, false);
    fill_ints(memory_buffer, memory);

    const auto key = [&](int set, int j) {
        return rows.key(memory[size_t(set) * slots + j], set / per_head);
    };
    const auto value = [&](int set, int j) {
        return rows.value(memory[size_t(set) * slots + j], set / per_head);
    };
    const auto reference = [&](Precision precision) {
        return attend(s, q.exact, n, slots, key, value, [](int, int) { return true; }, precision);
    };
    const Reference exact = reference(Precision::kExact);
    const Reference low = reference(yardstick(c));

    Buffer k_mem(size_t(sets) * slots * d * size_of(s.dtype), true),
        v_mem(size_t(sets) * slots * dv * size_of(s.dtype), true);
    const h2o_kv kv = cache_of(k, v, capacity);
    auto gather = call_of<h2o::calls::MemoryGather>(s, &kv);
    gather.M = slots, gather.memory = memory_buffer.device<int32_t>();
    gather.k_mem = k_mem.device(), gather.v_mem = v_mem.device();
    run_twice({&k_mem, &v_mem}, [&] { return h2o::cuda::run(gather); });
    std::vector<double> gathered, gathered_values;
    for (int set = 0; set < sets; ++set)
        for (int j = 0; j < slots; ++j) {
            gathered.insert(gathered.end(), key(set, j), key(set, j) + d);
            gathered_values.insert(gathered_values.end(), value(set, j), value(set, j) + dv);
        }
    EXPECT(download(k_mem, s.dtype) == gathered);
    EXPECT(download(v_mem, s.dtype) == gathered_values);

    {
        StateBuffers state(s, n, true);
        Buffer colsum(size_t(sets) * slots * 4, true);
        auto call = call_of<h2o::calls::MemoryAttention>(s);
        call.n = n, call.M = slots, call.colsum = colsum.device<float>();
        call.q = q.buffer.device(), call.k_mem = k_mem.device(), call.v_mem = v_mem.device();
        state.receive(call);
        Workspace workspace(call);
        run_twice({&state.o, &state.m, &state.l, &colsum}, [&] { return h2o::cuda::run(call); });
        compare_state(c, state, exact, low);
        compare_to(c, "colsum", download(colsum, H2O_F32), exact.colsum, low.colsum);
    }

    // Fused in place with a random state; some rows of it are empty, with outputs that must not be read.
    StateBuffers fused(s, n, false);
    const Reference intra = random_state(s, n, empty_intra, fused, random);
    Buffer colsum(size_t(sets) * slots * 4, true);
    auto call = call_of<h2o::calls::MemoryFusedAttention>(s, &kv);
    call.n = n, call.M = slots, call.q = q.buffer.device(), call.colsum = colsum.device<float>();
    call.memory = memory_buffer.device<int32_t>();
    fused.fuse(call);
    Workspace workspace(call);
    run_twice({&fused.o, &fused.m, &fused.l, &colsum}, [&] { return h2o::cuda::run(call); });
    const Reference expected = fuse(intra, exact, dv, Precision::kExact);
    const Reference expected_low = fuse(intra, low, dv, yardstick(c));
    compare_state(c, fused, expected, expected_low);
    compare_to(c, "colsum", download(colsum, H2O_F32), exact.colsum, low.colsum);
}

// Tiles of rows with a memory each: every tile as memory_fused_attention alone has it, bit for bit.
void test_tiled(const Case& c, int n, int tile, int slots, std::mt19937& random) {
    name_case("tiled", c, "n=%d tile=%d M=%d", n, tile, slots);
    const h2o_shape s = c.shape;
    const int capacity = 2 * slots, tiles = (n + tile - 1) / tile, sets = s.score_heads;
    Numbers q(size_t(n) * s.query_heads * s.head_size, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    Rows rows(c, capacity, random);
    const h2o_kv kv = cache_of(rows.k, rows.values(), capacity);
    const std::vector<int32_t> memory = random_memory(tiles * sets, slots, capacity, random);
    Buffer memory_buffer(memory.size() * 4, false);
    fill_ints(memory_buffer, memory);
    StateBuffers state(s, n, false);
    random_state(s, n, false, state, random);
    const std::vector<Buffer*> outputs = {&state.o, &state.m, &state.l};
    std::vector<std::vector<unsigned char>> alone;
    for (Buffer* b : outputs) b->reset();
    for (int t = 0; t < tiles; ++t) {
        const size_t at = size_t(t) * tile * s.query_heads;
        auto own = call_of<h2o::calls::MemoryFusedAttention>(s, &kv);
        own.n = std::min(tile, n - t * tile), own.M = slots;
        own.q = q.buffer.device<unsigned char>() + at * s.head_size * size_of(s.dtype);
        own.memory = memory_buffer.device<int32_t>() + size_t(t) * sets * slots;
        state.fuse(own, at);
        EXPECT(h2o::cuda::run(own) == H2O_OK);
    }
    must(cudaDeviceSynchronize());
    for (Buffer* b : outputs) alone.push_back(b->download());
    auto call = call_of<h2o::calls::TiledMemoryAttention>(s, &kv);
    call.n = n, call.tile = tile, call.M = slots, call.q = q.buffer.device();
    call.memory = memory_buffer.device<int32_t>();
    state.fuse(call);
    run_twice(outputs, [&] { return h2o::cuda::run(call); });
    for (size_t i = 0; i < outputs.size(); ++i) EXPECT(outputs[i]->download() == alone[i]);
}

void test_cached(const Case& c, int n, int length, int capacity, std::mt19937& random) {
    name_case("cached", c, "n=%d length=%d cap=%d", n, length, capacity);
    const h2o_shape s = c.shape;
    const int d = s.head_size, dv = value_size(s), per_head = s.score_heads / s.kv_heads;
    Numbers q(size_t(n) * s.query_heads * d, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    Rows rows(c, capacity, random);
    Numbers &k = rows.k, &v = rows.values();
    // Rows past the length hold NaN, as fresh memory may, and so do rows before the first window: they must
    // not count.
    const int seen = s.window > 0 ? s.window : capacity, first = std::max(0, length - n + 1 - seen);
    for (Numbers* numbers : {&k, &v}) {
        std::vector<unsigned char>& host = numbers->buffer.host();
        const size_t row = host.size() / size_t(capacity), used = row * size_t(length);
        std::memset(host.data() + used, 0xff, host.size() - used);
        std::memset(host.data(), 0xff, row * size_t(first));
        numbers->buffer.reset();
    }
    Buffer length_buffer(8, false), o(size_t(n) * s.query_heads * dv * size_of(s.dtype), true);
    const int64_t length64 = length;
    std::memcpy(length_buffer.host().data(), &length64, 8);
    length_buffer.reset();
    const h2o_kv kv = cache_of(k, v, capacity);
    auto call = call_of<h2o::calls::CachedAttention>(s, &kv);
    call.n = n, call.q = q.buffer.device(), call.o = o.device(),
    call.length = length_buffer.device<int64_t>();
    Workspace workspace(call);
    run_twice({&o, &workspace}, [&] { return h2o::cuda::run(call); });
    const auto reference = [&](Precision precision) {
        return attend(
            s, q.exact, n, length, [&](int set, int j) { return rows.key(j, set / per_head); },
            [&](int set, int j) { return rows.value(j, set / per_head); },
            [&](int row, int j) { return j <= length - n + row && j > length - n + row - seen; }, precision);
    };
    const Reference exact = reference(Precision::kExact);
    const Reference low = reference(yardstick(c));
    compare_to(c, "o", download(o, s.dtype), exact.o, low.o);
}

// A decode step: what its cache holds at length - 1 and behind is not a number until the step has put its row
// there. The counters are zeros once, before the first of all calls.
void test_step(const Case& c, int length, int capacity, Buffer& arrivals, std::mt19937& random) {
    name_case("step", c, "length=%d cap=%d", length, capacity);
    const h2o_shape s = c.shape;
    const int d = s.head_size, dv = value_size(s), per_head = s.score_heads / s.kv_heads;
    Numbers q(size_t(s.query_heads) * d, s.dtype);
    fill_normal(q, s.dtype, c.spread, random);
    Rows rows(c, capacity, random);
    Numbers &k = rows.k, &v = rows.values();
    std::vector<Numbers*> parts = {&k};
    if (!c.latent) parts.push_back(&v);
    std::vector<std::unique_ptr<Buffer>> added;
    std::vector<std::vector<unsigned char>> whole;
    for (Numbers* part : parts) {
        std::vector<unsigned char>& host = part->buffer.host();
        const size_t row = host.size() / size_t(capacity), at = row * size_t(length - 1);
        added.push_back(std::make_unique<Buffer>(row, false));
        std::memcpy(added.back()->host().data(), host.data() + at, row);
        std::memset(host.data() + at + row, 0xff, host.size() - at - row);
        whole.push_back(host);
        std::memset(host.data() + at, 0xff, row);
        added.back()->reset();
    }
    Buffer length_buffer(8, false), o(size_t(s.query_heads) * dv * size_of(s.dtype), true);
    const h2o_kv kv = cache_of(k, v, capacity);
    auto call = call_of<h2o::calls::StepAttention>(s, &kv);
    call.q = q.buffer.device(), call.k = added[0]->device(), call.v = c.latent ? nullptr : added[1]->device();
    call.length = length_buffer.device<int64_t>(), call.o = o.device();
    call.counters = arrivals.device<uint32_t>();
    Workspace workspace(call);
    const auto step = [&](int64_t rows_there) {
        std::memcpy(length_buffer.host().data(), &rows_there, 8);
        length_buffer.reset();
        return h2o::cuda::run(call);
    };
    run_twice({&o, &workspace, &k.buffer, &v.buffer}, [&] { return step(length); });
    const std::vector<double> got = download(o, s.dtype);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT(parts[i]->buffer.download() == whole[i]);
    o.reset();
    auto attend_only = call_of<h2o::calls::CachedAttention>(s, &kv);
    attend_only.n = 1, attend_only.q = call.q, attend_only.length = call.length, attend_only.o = call.o;
    Workspace of_attention(attend_only);
    EXPECT(h2o::cuda::run(attend_only) == H2O_OK);
    EXPECT(download(o, s.dtype) == got);                               // of the two in turn, bit for bit
    for (const int64_t wrong : {int64_t(0), int64_t(capacity) + 1}) {  // nothing is appended
        for (Numbers* part : parts) part->buffer.reset();
        EXPECT(step(wrong) == H2O_OK);
        for (Numbers* part : parts) EXPECT(part->buffer.download() == part->buffer.host());
    }
    for (const uint32_t left : arrivals.values<uint32_t>()) EXPECT(left == 0);

    const auto reference = [&](Precision precision) {
        return attend(
            s, q.exact, 1, length, [&](int set, int j) { return rows.key(j, set / per_head); },
            [&](int set, int j) { return rows.value(j, set / per_head); },
            [&](int, int j) { return s.window == 0 || j >= length - s.window; }, precision);
    };
    compare_to(c, "o", got, reference(Precision::kExact).o, reference(yardstick(c)).o);
}

// Windows of one row, within a tile, over several tiles, and longer than the cache.
void test_windows(const Case& full, int first, int count, Buffer& arrivals, std::mt19937& random) {
    const int windows[] = {1, 20, 130, 1000};
    Case c = full;
    for (int i = first; i < first + count; ++i) {
        c.shape.window = windows[i % 4];
        test_cached(c, 1, 300, 310, random);
        test_cached(c, 1, 9, 310, random);
        test_step(c, 299, 310, arrivals, random);
        test_cached(c, 70, 75, 90, random);
        test_cached(c, 41, 300, 300, random);
    }
}

// Caps far below the largest scores, and far above.
void test_caps(const Case& full, float cap, Buffer& arrivals, std::mt19937& random) {
    Case c = full;
    c.shape.softcap = cap;
    test_intra(c, 37, 20, random);
    test_memory(c, 21, 39, 100, true, random);
    test_cached(c, 1, 100, 120, random);
    test_step(c, 100, 120, arrivals, random);
    test_cached(c, 40, 75, 90, random);
}

}  // namespace

void test_caps(const Options& options) {
    std::mt19937 random(options.seed + 30);
    Buffer arrivals(256 * 4, false);
    arrivals.reset();
    int which = 0;
    for (const Case& c : cases(options)) test_caps(c, which++ % 3 ? 2.f : 30.f, arrivals, random);
    if (options.head_size != 0) return;
    for (const Case& c : value_cases()) test_caps(c, which++ % 3 ? 2.f : 30.f, arrivals, random);
}

void test_windows(const Options& options) {
    std::mt19937 random(options.seed + 20);
    Buffer arrivals(256 * 4, false);
    arrivals.reset();
    const int count = options.small ? 1 : 4;  // of the windows
    int first = 0;
    for (const Case& c : cases(options)) test_windows(c, first++, count, arrivals, random);
    if (options.head_size != 0) return;
    for (const Case& c : value_cases()) test_windows(c, first++, count, arrivals, random);
    Case c{{16, 1, 1, 128, 0.1f, H2O_F16, 0, 0, 0}, 1};  // a window of many parts
    c.shape.window = 900;
    test_step(c, 950, 1000, arrivals, random);
}

void test_attention(const Options& options) {
    std::mt19937 random(options.seed + 1);
    const auto between = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    Buffer arrivals(256 * 4, false);
    arrivals.reset();
    for (const Case& c : cases(options)) {
        const int most = options.small ? 90 : 700;
        for (int repeat = 0; repeat < (options.small ? 1 : 3); ++repeat) {
            const int n = between(1, most);
            test_intra(c, n, between(std::max(1, n / 4), n + 20), random);
            const int capacity = between(most / 2, most * 2), slots = between(1, capacity / 2);
            test_memory(c, between(1, most / 2), slots, capacity, repeat == 1, random);
            test_cached(c, 1, between(1, capacity), capacity, random);
            test_step(c, between(1, capacity), capacity, arrivals, random);
            const int rows = between(2, std::min(capacity, most / 2)) | 1;
            test_cached(c, std::min(rows, capacity), between(std::min(rows, capacity), capacity), capacity,
                        random);
        }
        test_tiled(c, between(1, 100), between(1, 60), between(1, 90), random);
        test_intra(c, 1, 16, random);
        test_memory(c, 3, 1, 5, true, random);
        test_cached(c, 1, 1, 300, random);
        test_step(c, 1, 300, arrivals, random);
        test_step(c, 65, 65, arrivals, random);
    }
    if (options.head_size != 0) return;
    for (const int d : {64, 128}) {  // more heads to a key than one small tile takes
        const Case c{{24, 1, 1, d, 0.125f, H2O_F16, 0, 0, 0}, 1};
        test_step(c, 70, 90, arrivals, random);
    }
    // More parts than are added up inside; and more than two blocks to a multiprocessor need, so that there
    // are fewer.
    test_step({{16, 1, 1, 128, 0.1f, H2O_F16, 0, 0, 0}, 1}, 950, 1000, arrivals, random);
    test_step({{32, 2, 2, 64, 0.1f, H2O_F16, 0, 0, 0}, 1}, 2000, 2100, arrivals, random);
    for (const Case& c : value_cases()) {
        const int more = options.small ? 1 : 8;
        test_intra(c, 37 * more, 20 * more, random);
        test_memory(c, 21 * more, 39, 150 * more, true, random);
        test_tiled(c, 21 * more, 8 * more, 39, random);
        test_cached(c, 1, 170 * more, 200 * more, random);
        test_step(c, 170 * more, 200 * more, arrivals, random);
        test_cached(c, 7 * more, 100 * more, 130 * more, random);
    }
}

}  // namespace test
