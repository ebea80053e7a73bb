// A gated MLP, down(f(gate(x), up(x))), where f is an h2o_gate, of some rows. One thread takes them through
// it, some columns of gate and up at a time, so the values between its products stay in the second-level
// cache. Or all threads share the columns, where rows are few.
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
    h2o_gate function{};
    const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // all, or none

    int64_t inputs() const { return gate_up.all[0].inputs; }
    int64_t inner() const { return down.all[0].inputs; }
    int64_t outputs() const { return down.all[0].outputs; }

    // The attributes K, inner, N, block, bits, parts, gate, limit and gain.
    Status* read(const Interface& ort, const KernelInfo* info);
    // Inputs from `first` on: weights, scales and offsets of gate and up together, then of down. Of each only
    // so many are given.
    Status* find(const Interface& ort, KernelContext* context, size_t first, size_t given = kMostArrays);
    // Three inputs from `first` on, or none: the biases of gate, up and down.
    Status* find_biases(const Interface& ort, KernelContext* context, size_t first);

    // Columns of gate and up at a time for this many rows, which fill a quarter of a second-level cache.
    int64_t columns_of(int64_t rows) const;
    MlpRows buffers(int64_t rows, int64_t columns, Memory* memory) const;
};

// Some rows of one MLP: y [rows, N] = addend, if it is not null, + what the MLP makes of x.
struct MlpUnit {
    const GatedMlp* mlp;
    h2o_activations x;
    int64_t rows;
    const float* addend;
    float* y;
    MlpRows at;

    // The whole MLP, `columns` of gate and up at a time.
    void pass(int64_t columns) const;
};

// Units with buffers for all columns, divided among the session's `threads`.
Status* by_columns(const Interface& ort, KernelContext* context, const MlpUnit* units, int64_t count,
                   int64_t threads);

}  // namespace h2o::ort
