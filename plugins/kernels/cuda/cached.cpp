// CachedAttention: every new token attends to the whole cache; the keys are split over the device.
//
// Floor for one token: the bytes of the cache up to its length, or of the window. The capacity or the window
// fixes the grid. The length, which only the device knows, gives the number of keys of each part; unused
// parts end at once.

#include "attention.h"
#include "checks.h"
#include "parts.h"
#include "tiles.h"

using namespace h2o::cuda;

namespace {

// The most parts of one token that one warp combines after the attention in less time than a launch takes.
constexpr int64_t kBytesAddedInside = 96 * 1024;

// Limit for the partial states: with it, a device with 188 multiprocessors is full with 25 MB of parts. The
// workspace size depends on this limit and not on the device, because an engine may run on a larger GPU than
// it was built on.
constexpr int64_t kMostPartBytes = 32 << 20;

// The most keys that any of n rows sees, in tiles: the smallest parts.
int64_t key_tiles(const h2o_shape& shape, int n, int capacity) {
    const int64_t spanned = int64_t{shape.window} + n - 1;
    const int64_t keys = shape.window > 0 && spanned < capacity ? spanned : capacity;
    return (keys + kKeyTile - 1) / kKeyTile;
}

// Only the cache knows whether values are stored in keys; the workspace has room for both cases.
BlockForm blocks_of(const h2o_shape& shape, int64_t packed_rows, bool latent) {
    return block_form(packed_rows, shape.head_size, value_size(shape), shape.dtype, latent);
}

int64_t states_with_room(const h2o_shape& shape) {
    return kMostPartBytes / (int64_t{4} * (value_size(shape) + 2));
}

// As many parts as blocks that the device runs at once: more would need a second wave, which takes almost as
// long as the first.
int parts_of(const h2o_shape& shape, int n, int capacity, int processors, bool latent) {
    const int64_t packed = static_cast<int64_t>(n) * (shape.query_heads / shape.kv_heads);
    const BlockForm form = blocks_of(shape, packed, latent);
    const int64_t blocks = (packed + form.rows - 1) / form.rows * shape.kv_heads;
    const int64_t wanted = static_cast<int64_t>(form.at_once) * processors / blocks;
    const int64_t most = key_tiles(shape, n, capacity);
    int64_t parts = wanted < most ? wanted : most;
    const int64_t room = states_with_room(shape) / (static_cast<int64_t>(n) * shape.query_heads);
    if (parts > kMostParts) parts = kMostParts;
    if (parts > room) parts = room;
    return parts < 1 ? 1 : static_cast<int>(parts);
}

// How the keys of one token are split, and whether the last block combines the parts. In that case there are
// fewer parts, provided that every multiprocessor still gets two blocks. The split does not depend on who
// appends the row.
struct Cut {
    int parts;
    bool inside;
};

Cut cut_of_one(const h2o_shape& shape, int capacity, int processors, bool latent) {
    const int group = shape.query_heads / shape.kv_heads, dv = value_size(shape);
    const int parts = parts_of(shape, 1, capacity, processors, latent);
    if (!step_in_one(group, shape.head_size, dv, shape.dtype, latent)) return {parts, false};
    const bool wide = form_of(shape.head_size, dv, shape.dtype, latent) == Form::kLatent;
    const int rows = blocks_of(shape, group, latent).rows, warps = wide ? kLatentWarps : 1;
    const int64_t bytes = int64_t{4} * dv * (group < rows ? group : rows);
    const int64_t most = kBytesAddedInside * warps / bytes;
    if (parts <= most) return {parts, true};
    if (most * shape.kv_heads >= 2 * processors) return {static_cast<int>(most), true};
    return {parts, false};
}

// The largest number of partial states (parts x rows) of any call with up to n tokens, on any device.
int64_t most_states(const h2o_shape& shape, int n, int capacity) {
    const int64_t tiles = key_tiles(shape, n, capacity);
    const int64_t states = (tiles < kMostParts ? tiles : kMostParts) * n * shape.query_heads;
    const int64_t room = states_with_room(shape);
    return states < room ? states : room;
}

// The last n rows of a cache, which attend to all of it up to themselves, or to a window of it.
template <class Call>
AttentionArgs last_rows(const Call& call, int n, const int64_t* length) {
    const int capacity = static_cast<int>(call.kv->rows), heads = call.shape.kv_heads;
    AttentionArgs attention = attention_of(call.shape, rows_of(call.shape, call.q, n, heads),
                                           cache_keys(call.shape, *call.kv, true, capacity, heads));
    attention.keys.length = length;
    attention.keys.causal = true;
    attention.keys.window = call.shape.window;
    attention.sinks = call.sinks;
    const int processors = multiprocessors();
    const bool latent = h2o_kv_latent(call.kv);
    attention.splits = n == 1 ? cut_of_one(call.shape, capacity, processors, latent).parts
                              : parts_of(call.shape, n, capacity, processors, latent);
    return attention;
}

// m and l [n, Hq] are the rows' final states, or null if nobody asks for them.
template <class Call>
h2o_status attend(const Call& call, int n, float* m, float* l, Workspace& pieces) {
    const cudaStream_t stream = stream_of(call);
    AttentionArgs attention = last_rows(call, n, call.length);
    if (attention.splits == 1) {
        attention.o = call.o;
        attention.m = m;
        attention.l = l;
        return launch_attention(attention, stream);
    }

    const int64_t rows = static_cast<int64_t>(n) * call.shape.query_heads;
    h2o_status status = take_parts(attention, pieces);
    if (status != H2O_OK) return status;
    status = launch_attention(attention, stream);
    if (status != H2O_OK) return status;
    status = launch_combine_parts(attention, call.o, stream);
    if (status != H2O_OK || !m) return status;
    return launch_combine_states(attention.partial_m, attention.partial_l, attention.splits, rows, m, l,
                                 stream);
}

}  // namespace

namespace h2o::cuda {

namespace {

size_t bytes_of(const h2o_shape& shape, int32_t n, int32_t capacity) {
    if (check_shape(&shape) != H2O_OK || n <= 0 || capacity <= 0) return 0;
    const int64_t states = most_states(shape, n, capacity);
    Workspace pieces;
    pieces.take<float>(states * value_size(shape));
    pieces.take<float>(states);
    pieces.take<float>(states);
    return pieces.used();
}

// A step of one row, or of several with a row tile each. A row is split as in a step of its own, so its
// numbers depend on nothing else. One row is appended by its attention. Several are appended before, because
// rows of one sequence see each other.
template <class Step>
h2o_status run_step(AttentionArgs& step, const Step& call, bool latent, Workspace& pieces) {
    const cudaStream_t stream = stream_of(call);
    const Cut cut = cut_of_one(call.shape, static_cast<int>(call.kv->rows), multiprocessors(), latent);
    if (step.rows.tokens > 1 ||
        !step_in_one(step.rows.group, step.head_size, step.value_size, step.dtype, latent)) {
        if (const h2o_status status = launch_append_last_row(step, stream); status != H2O_OK) return status;
        step.new_k = step.new_v = nullptr;
    }
    step.o = call.o;
    if (cut.parts == 1) return launch_attention(step, stream);
    if (const h2o_status status = take_parts(step, pieces); status != H2O_OK) return status;
    if (cut.inside) step.arrivals = call.counters;
    const h2o_status status = launch_attention(step, stream);
    return status == H2O_OK && !cut.inside ? launch_combine_parts(step, call.o, stream) : status;
}

}  // namespace

size_t workspace(const calls::CachedAttention& call) {
    return bytes_of(call.shape, call.n, call.cap);
}

size_t workspace(const calls::StepAttention& call) {
    return bytes_of(call.shape, 1, call.cap);
}

// The same for any number of rows: the recording of a step of few rows keeps its workspace.
size_t workspace(const calls::StepRowsAttention& call) {
    const size_t of_one = bytes_of(call.shape, 1, call.cap);
    if (of_one == 0) return 0;
    AttentionArgs step;
    step.splits = cut_of_one(call.shape, call.cap, multiprocessors(), false).parts;
    step.rows.tokens = H2O_MOST_STEP_ROWS;
    step.rows.heads = call.shape.query_heads;
    step.value_size = value_size(call.shape);
    Workspace pieces;
    take_parts(step, pieces);
    return pieces.used() > of_one ? pieces.used() : of_one;
}

h2o_status run(const calls::CachedAttention& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (call.n <= 0 || !call.q || !call.length || !call.o) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, call.n); status != H2O_OK) return status;
    if (const h2o_status status = check_tokens(call.shape, call.n); status != H2O_OK) return status;
    Workspace pieces(call.workspace, call.workspace_bytes);
    return attend(call, call.n, nullptr, nullptr, pieces);
}

h2o_status run(const calls::StepAttention& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (!call.q || !call.k || !call.length || !call.o || !call.counters) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    const bool latent = h2o_kv_latent(call.kv);
    if (!call.v && !latent) return H2O_BAD_ARGUMENT;

    Workspace pieces(call.workspace, call.workspace_bytes);
    AttentionArgs step = last_rows(call, 1, call.length);
    step.new_k = call.k;
    step.new_v = call.v;
    return run_step(step, call, latent, pieces);
}

h2o_status run(const calls::StepRowsAttention& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (any_null(call.q, call.k, call.v, call.lengths, call.caches, call.o, call.counters))
        return H2O_BAD_ARGUMENT;
    if (call.n <= 0 || call.n > H2O_MOST_STEP_ROWS) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    if (h2o_kv_latent(call.kv)) return H2O_UNSUPPORTED;

    Workspace pieces(call.workspace, call.workspace_bytes);
    AttentionArgs step = last_rows(call, 1, call.lengths);
    step.rows.tokens = call.n;
    step.rows.tile = 1;
    static_assert(sizeof(h2o_kv) == 8 * sizeof(int64_t), "an entry of caches");
    step.keys.caches = reinterpret_cast<const h2o_kv*>(call.caches);
    step.new_k = call.k;
    step.new_v = call.v;
    return run_step(step, call, false, pieces);
}

size_t workspace(const calls::ScoredAttention& call) {
    const size_t of_attention = bytes_of(call.shape, 1, call.cap);
    if (of_attention == 0) return 0;
    Workspace states;
    states.take<float>(call.shape.query_heads);
    states.take<float>(call.shape.query_heads);
    return states.used() + of_attention;
}

h2o_status run(const calls::ScoredAttention& call) {
    if (const h2o_status status = check_shape(&call.shape); status != H2O_OK) return status;
    if (!call.q || !call.length || !call.o || !call.seen) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(call.shape, call.kv, 1); status != H2O_OK) return status;
    Workspace pieces(call.workspace, call.workspace_bytes);
    float* const m = pieces.take<float>(call.shape.query_heads);
    float* const l = pieces.take<float>(call.shape.query_heads);
    if (!pieces.enough()) return H2O_OUT_OF_WORKSPACE;
    const h2o_status status = attend(call, 1, m, l, pieces);
    if (status != H2O_OK) return status;

    const int capacity = static_cast<int>(call.kv->rows);
    ColumnSumArgs sums =
        column_sums_of(call.shape, rows_of(call.shape, call.q, 1, call.shape.kv_heads),
                       cache_keys(call.shape, *call.kv, false, capacity, call.shape.kv_heads));
    sums.m = m;
    sums.l = l;
    sums.spanned = 1;
    sums.keys.length = call.length;
    sums.keys.causal = true;
    sums.out = call.seen;
    sums.key_stride = call.shape.kv_heads;
    sums.set_stride = 1;
    return launch_column_sums(sums, stream_of(call));
}

}  // namespace h2o::cuda
