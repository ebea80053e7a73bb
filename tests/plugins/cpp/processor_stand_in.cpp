// In place of processor.cpp: a program with stand-ins has all instructions where it has those that they use.
#include "x86/processor.h"

namespace h2o {

bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx_vnni() {
    return has_avx2();
}

bool has_avx512() {
    return has_avx2();
}

bool has_avx512_vnni() {
    return has_avx2();
}

bool has_avx512_bfloat16() {
    return has_avx2();
}

bool has_amx(uint32_t) {
    return has_avx2();
}

}  // namespace h2o
