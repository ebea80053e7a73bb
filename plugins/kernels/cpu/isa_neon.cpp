#include "isa.h"
#include "simd_neon.h"
// must come after the instruction set:
#include "kernels.h"

const h2o::KernelTable* h2o::neon_kernels() {
    return &kTable;
}
