#include "isa.h"
#include "simd_avx2.h"
// must come after the instruction set:
#include "kernels.h"

const h2o::KernelTable* h2o::avx2_kernels() {
    return &kTable;
}
