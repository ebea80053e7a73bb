// A gated MLP, down(f(gate(x)) * up(x)), where f is an h2o_gate. Some rows go through it on one thread, some
// columns of gate and up at a time, so the values between its products stay in the second-level cache.
#pragma once

#include "memory.h"

namespace h2o::ort {

// Buffers for some rows: their prepared x, some columns of gate and up, and the prepared input of down.
struct MlpRows {
    void* x;
    float* gate;
    float* up;
    void* inner;
};

struct GatedMlp {
    Matrices gate_up, down;
    h2o_gate function = H2O_SILU;

    int64_t inputs() const { return gate_up.all[0].inputs; }
    int64_t inner() const { return down.all[0].inputs; }
    int64_t outputs() const { return down.all[0].outputs; }

    // The attributes K, inner, N, block, bits and gate.
    Status* read(const Interface& ort, const KernelInfo* info);
    // Inputs from `first` on: weights, scales and offsets of gate and up together, and those of down. Of each
    // only so many are given.
    Status* find(const Interface& ort, KernelContext* context, size_t first, size_t given = kMostArrays);

    // Columns that gate and up can be cut into.
    int64_t column_step() const;
    // Columns of gate and up at a time for this many rows, which fill a quarter of a second-level cache.
    int64_t columns_of(int64_t rows) const;
    MlpRows buffers(int64_t rows, int64_t columns, Memory* memory) const;

    // `count` columns from `column` on of gate and up, which become those columns of down's prepared input.
    void gate_columns(int64_t rows, const void* prepared, int64_t column, int64_t count,
                      const MlpRows& at) const;
    // Rows 0 ... rows of x through the whole MLP, `columns` of gate and up at a time.
    void pass(const h2o_activations& x, int64_t rows, int64_t columns, const MlpRows& at, const float* addend,
              float* y) const;
};

}  // namespace h2o::ort
