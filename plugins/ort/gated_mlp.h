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

// All units of a run. Either one thread takes a unit through the whole MLP, and intermediate results stay in
// its cache; or, where units are few, all threads share their columns.
class MlpUnits {
  public:
    // `mlp`: any of them, as all have the same sizes. `rows`: the most of a unit.
    MlpUnits(const GatedMlp& mlp, int64_t threads, int64_t count, int64_t rows, bool whole)
        : mlp_(mlp),
          threads_(threads),
          count_(count),
          rows_(rows),
          whole_(whole),
          columns_(whole ? mlp.columns_of(rows) : mlp.inner()) {}

    // each(visit) calls visit(unit) for all units, which have no buffers yet.
    template <class Each>
    void lay_out(Memory* memory, const Each& each) {
        units_ = memory->take<MlpUnit>(count_);
        if (whole_) {
            Memory one(nullptr);
            mlp_.buffers(rows_, columns_, &one);
            buffer_bytes_ = one.used();
            buffers_ = memory->take<char>(std::min(count_, threads_) * buffer_bytes_);
        }
        MlpUnit* next = units_;
        each([&](MlpUnit unit) {
            if (!whole_) unit.at = mlp_.buffers(unit.rows, columns_, memory);
            if (next != nullptr) *next++ = unit;
        });
    }
    Status* run(const Interface& ort, KernelContext* context) const;

  private:
    Status* by_columns(const Interface& ort, KernelContext* context) const;

    const GatedMlp& mlp_;
    int64_t threads_;  // of the session
    int64_t count_, rows_;
    bool whole_;       // whether one thread takes a unit through the whole MLP
    int64_t columns_;  // of gate and up at a time
    MlpUnit* units_ = nullptr;
    char* buffers_ = nullptr;  // of threads, where each takes whole units
    int64_t buffer_bytes_ = 0;
};

}  // namespace h2o::ort
