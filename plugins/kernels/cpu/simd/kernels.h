// The kernels that are compiled once for each instruction set. Include one simd_*.h before this file. All
// functions have internal linkage and call no inline function of the standard library: the linker would keep
// only one copy of it, perhaps compiled for another machine.
#pragma once

#include "simd/attend.h"
#include "simd/bounds.h"
#include "simd/delta.h"
#include "simd/mamba2.h"
#include "simd/own_keys.h"

namespace {

void attend(const BlockArgs& args) {
    if (args.stride == 0) {
        attend_form<Float32, true>(args);
    } else {
        attend_form<Float32, false>(args);
    }
}

constexpr h2o::KernelTable kTable = {
    Simd::kName,
    {Float32::kPair, Float32::kScales, Float32::kPair, attend, pack_keys, pack_values, pack_queries},
    finish_rows,
    decode,
    bounds,
    store_rows,
    blend_row,
    blend_block,
    to_float,
    from_float,
    to_int8,
    sum_lanes,
    line_sums,
    delta,
    mamba2_pairs,
    mamba2,
    exp_many,
};

}  // namespace
