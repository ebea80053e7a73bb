// Attention whose scores are products of 16-bit integers, compiled once for each instruction set that
// multiplies them. As in kernels.h, all functions have internal linkage. Include one simd_*.h before this
// file, and after it one ints_*.h and int16.h (or int16_scalar.h), then blocks_int16.h.
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
// clang-format on
