// Attention on blocks of bfloat16 numbers, compiled once for each instruction set that multiplies them. As in
// kernels.h, all functions have internal linkage. Include one simd_*.h and one bfloat16_*.h before this file.
#pragma once

// clang-format off: each uses the ones before
#include "simd/vexp.h"
#include "simd/transpose.h"
#include "simd/fetch.h"
#include "simd/multiply.h"
#include "simd/tile.h"
#include "simd/sample.h"
#include "simd/attend.h"
#include "simd/pack.h"
#include "simd/blocks_bfloat16.h"
// clang-format on
