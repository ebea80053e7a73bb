#include "isa.h"
#include "simd_avx2.h"
// after the instruction set they are written over:
#include "kernels.h"

const h2o::KernelTable* h2o::avx2_kernels() {
    return &kTable;
}
