#include "isa.h"
#include "simd_avx512.h"
// after the instruction set they are written over:
#include "kernels.h"

const h2o::KernelTable* h2o::avx512_kernels() {
    return &kTable;
}
