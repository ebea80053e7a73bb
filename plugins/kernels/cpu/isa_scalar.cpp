#include "isa.h"
#include "simd_scalar.h"
// must come after the instruction set:
#include "kernels.h"

const h2o::KernelTable* h2o::scalar_kernels() {
    return &kTable;
}
