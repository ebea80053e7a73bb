// What this processor can do beyond the baseline of x86-64. Tests put their own in place of processor.cpp.
#pragma once

#include <cstdint>

namespace h2o {

bool has_avx2();             // with FMA and F16C
bool has_avx_vnni();         // of 256 bits, without AVX-512
bool has_avx512();           // with BW, DQ and VL, and AVX2
bool has_avx512_vnni();      // beside has_avx512()
bool has_avx512_bfloat16();  // beside has_avx512()

// Bits of CPUID that say what tiles of AMX multiply.
constexpr uint32_t kAmxBFloat16 = 1u << 22, kAmxInt8 = 1u << 25;

// Whether the processor has tiles and multiplies such numbers, and the system lets this process use them. On
// Linux a process must ask before its first use.
bool has_amx(uint32_t numbers);

// One product of tiles against plain C++. Only after has_amx().
bool amx_int8_is_right();
bool amx_bfloat16_is_right();

}  // namespace h2o
