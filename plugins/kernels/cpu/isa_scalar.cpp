#include "isa.h"
#include "simd_scalar.h"
// after the instruction set they are written over:
#include "kernels.h"

const h2o::KernelTable* h2o::scalar_kernels() {
    return &kTable;
}
