#include "isa.h"
#include "scalar/simd_scalar.h"
// must come after the instruction set:
#include "simd/kernels.h"

const h2o::KernelTable* h2o::scalar_kernels() {
    return &kTable;
}
