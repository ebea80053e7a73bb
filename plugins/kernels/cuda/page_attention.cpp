// PageAttention: one token attends to lists of pages, by way of the listed keys of attention_f16.cuh. The
// keys are split over the device, as in CachedAttention.

#include "attention.h"
#include "checks.h"
#include "parts.h"
#include "tiles.h"

namespace h2o::cuda {

namespace {

int64_t keys_of(const calls::PageAttention& call) {
    return static_cast<int64_t>(call.M) * call.page_size;
}

// An upper bound for every device: a part has at least one tile of keys.
int most_parts(const calls::PageAttention& call) {
    const int64_t tiles = (keys_of(call) + kKeyTile - 1) / kKeyTile;
    return static_cast<int>(tiles < kMostParts ? tiles : kMostParts);
}

// As many parts as fill this device.
int parts_of(const calls::PageAttention& call) {
    const h2o_shape& shape = call.shape;
    const int packed = shape.query_heads / shape.score_heads;
    const BlockForm form = block_form(packed, shape.head_size, shape.head_size, shape.dtype, false);
    const int blocks = (packed + form.rows - 1) / form.rows * shape.score_heads;
    const int wanted = form.at_once * multiprocessors() / blocks, most = most_parts(call);
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

h2o_status check(const calls::PageAttention& call) {
    if (const h2o_status status = check_alike(&call.shape); status != H2O_OK) return status;
    if (call.page_size <= 0 || call.M <= 0) return H2O_BAD_ARGUMENT;
    // Keys are divided by the page's rows the way token_of divides.
    return keys_of(call) * call.page_size < int64_t{1} << 31 ? H2O_OK : H2O_UNSUPPORTED;
}

}  // namespace

size_t workspace(const calls::PageAttention& call) {
    if (check(call) != H2O_OK) return 0;
    AttentionArgs attention = attention_of(call.shape, rows_of(call.shape, nullptr, 1, 1), {});
    attention.splits = most_parts(call);
    Workspace pieces;
    take_parts(attention, pieces);
    return pieces.used();
}

h2o_status run(const calls::PageAttention& call) {
    const cudaStream_t stream = stream_of(call);
    const h2o_shape& shape = call.shape;
    if (const h2o_status status = check(call); status != H2O_OK) return status;
    if (!call.q || !call.length || !call.page_list || !call.o) return H2O_BAD_ARGUMENT;
    if (const h2o_status status = check_kv(shape, call.kv, 1); status != H2O_OK) return status;
    const int sets = shape.score_heads, rows = static_cast<int>(call.kv->rows);
    AttentionArgs attention =
        attention_of(shape, rows_of(shape, call.q, 1, sets), cache_keys(shape, *call.kv, true, rows, sets));
    attention.keys.last_row = rows - 1;
    KeyList& list = attention.keys.list;
    list.entries = call.page_list;
    list.count = call.M;
    list.segment = call.page_size;
    list.reciprocal = reciprocal_of(call.page_size);
    list.length = call.length;
    attention.splits = parts_of(call);
    if (attention.splits == 1) {
        attention.o = call.o;
        return launch_attention(attention, stream);
    }
    Workspace pieces(call.workspace, call.workspace_bytes);
    if (const h2o_status status = take_parts(attention, pieces); status != H2O_OK) return status;
    const h2o_status status = launch_attention(attention, stream);
    return status == H2O_OK ? launch_combine_parts(attention, call.o, stream) : status;
}

}  // namespace h2o::cuda
