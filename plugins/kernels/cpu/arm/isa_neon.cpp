#include "arm/simd_neon.h"
#include "isa.h"
// must come after the instruction set:
#include "simd/kernels.h"

const h2o::KernelTable* h2o::neon_kernels() {
    return &kTable;
}
