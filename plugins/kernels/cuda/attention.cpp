#include "attention.h"

#include "parts.h"
#include "tiles.h"

namespace h2o::cuda {

h2o_status launch_attention(const AttentionArgs& given, cudaStream_t stream) {
    AttentionArgs args = given;
    if (args.partial_m) args.part_reciprocal = reciprocal_of(args.splits);
    // Without values, each key size has one kernel.
    const bool latent = args.keys.v == nullptr || args.keys.v == args.keys.k;
    switch (form_of(args.head_size, args.value_size, args.dtype, latent)) {
        case Form::kTiles:
            return launch_attention_f16(args, stream);
        case Form::kLatent:
            return launch_latent_f16(args, stream);
        case Form::kAny:
            break;
    }
    return launch_attention_any(args, stream);
}

BlockForm block_form(int64_t packed_rows, int head_size, int value_size, h2o_dtype dtype, bool latent) {
    switch (form_of(head_size, value_size, dtype, latent)) {
        case Form::kTiles:
            return block_form_f16(small_tile(packed_rows), head_size, value_size);
        case Form::kLatent:
            return block_form_latent(packed_rows);
        case Form::kAny:
            break;
    }
    return block_form_any(dtype);
}

int multiprocessors() {
    int device = 0, count = 0;
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess && count > 0)
        return count;
    (void)cudaGetLastError();
    return kMostParts;
}

bool step_in_one(int group, int head_size, int value_size, h2o_dtype dtype, bool latent) {
    const Form form = form_of(head_size, value_size, dtype, latent);
    return form == Form::kLatent || (form == Form::kTiles && small_tile(group));
}

h2o_status launch_column_sums(const ColumnSumArgs& args, cudaStream_t stream) {
    const int d = args.head_size;
    if (args.dtype == H2O_F16 && (has_tiles(d) || d == kMostTiledHeadSize || d == kMostHeadSize))
        return launch_column_sums_f16(args, stream);
    return launch_column_sums_any(args, stream);
}

}  // namespace h2o::cuda
