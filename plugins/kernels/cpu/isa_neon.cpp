#include "isa.h"
#include "simd_neon.h"
// after the instruction set they are written over:
#include "kernels.h"

const h2o::KernelTable* h2o::neon_kernels() {
    return &kTable;
}
