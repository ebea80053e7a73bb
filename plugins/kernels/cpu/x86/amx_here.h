// Whether AMX, the tiles of Intel's processors since Sapphire Rapids, can be used here.
#pragma once

#include <cstdint>

namespace h2o {

// Bits of CPUID that say what tiles multiply.
constexpr uint32_t kAmxBFloat16 = 1u << 22, kAmxInt8 = 1u << 25;

// Whether the processor has tiles and multiplies such numbers, and the system lets this process use them. On
// Linux a process must ask before its first use.
bool has_amx(uint32_t numbers);

// One product of tiles against plain C++. Only after has_amx().
bool amx_int8_is_right();
bool amx_bfloat16_is_right();

}  // namespace h2o
