#include "isa.h"
#include "x86/simd_avx512.h"
// must come after the instruction set:
#include "simd/kernels.h"

const h2o::KernelTable* h2o::avx512_kernels() {
    return &kTable;
}
