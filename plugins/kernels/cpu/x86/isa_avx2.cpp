#include "isa.h"
#include "x86/simd_avx2.h"
// must come after the instruction set:
#include "simd/kernels.h"

const h2o::KernelTable* h2o::avx2_kernels() {
    return &kTable;
}
