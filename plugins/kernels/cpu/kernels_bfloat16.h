// Attention on blocks of bfloat16 numbers, compiled once for each instruction set that multiplies them. As in
// kernels.h, all functions have internal linkage. Include one simd_*.h and one bfloat16_*.h before this file.
#pragma once

// clang-format off: each uses the ones before
#include "vexp.h"
#include "transpose.h"
#include "fetch.h"
#include "multiply.h"
#include "tile.h"
#include "pack.h"
#include "blocks_bfloat16.h"
// clang-format on
