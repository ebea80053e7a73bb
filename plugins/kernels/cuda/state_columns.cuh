// A head's state in columns: a block owns 32 of them in shared memory, a lane a column, for as long as it
// takes tokens.
#pragma once

#include <cstdint>

namespace h2o::cuda {

constexpr int kColumns = 32, kStateWarps = 4, kStateThreads = kColumns * kStateWarps;

// Where a thread of such a block stands in states [Hq, d, dv].
struct StateColumn {
    int warp, lane, column;
    bool used;      // whether the head has so many columns
    int64_t begin;  // of the column in the head's state

    __device__ StateColumn(int head, int d, int dv)
        : warp(threadIdx.x / kColumns),
          lane(threadIdx.x % kColumns),
          column(blockIdx.y * kColumns + lane),
          used(column < dv),
          begin(static_cast<int64_t>(head) * d * dv + column) {}

    // shared [d][kColumns]; columns that the head has not are zeros.
    __device__ void read(const float* state, int d, int dv, float* shared) const {
        for (int i = warp; i < d; i += kStateWarps)
            shared[i * kColumns + lane] = used ? state[begin + static_cast<int64_t>(i) * dv] : 0.f;
    }

    __device__ void write(const float* shared, int d, int dv, float* state) const {
        if (!used) return;
        for (int i = warp; i < d; i += kStateWarps)
            state[begin + static_cast<int64_t>(i) * dv] = shared[i * kColumns + lane];
    }
};

// products [Rows][kColumns] = factors [Rows][stride] . state [d][kColumns]: a warp some rows.
template <int Rows>
__device__ void multiply_state(const float* factors, int stride, const float* state, int d, float* products,
                               int warp, int lane) {
    constexpr int kOwn = Rows / kStateWarps;
    float sum[kOwn] = {};
    factors += warp * kOwn * stride;
    for (int i = 0; i < d; i += 4) {
        float column[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) column[u] = state[(i + u) * kColumns + lane];
#pragma unroll
        for (int row = 0; row < kOwn; ++row) {
            const float4 f = *reinterpret_cast<const float4*>(factors + row * stride + i);
            sum[row] = fmaf(f.x, column[0], sum[row]);
            sum[row] = fmaf(f.y, column[1], sum[row]);
            sum[row] = fmaf(f.z, column[2], sum[row]);
            sum[row] = fmaf(f.w, column[3], sum[row]);
        }
    }
#pragma unroll
    for (int row = 0; row < kOwn; ++row) products[(warp * kOwn + row) * kColumns + lane] = sum[row];
}

// state [d][kColumns] = keep * state + sum over j of factors_j added_j, factors [Tokens][stride].
template <int Tokens>
__device__ void update_state(const float* factors, int stride, const float (&added)[Tokens], float keep,
                             float* state, int d, int warp, int lane) {
    for (int i = 4 * warp; i < d; i += 4 * kStateWarps) {
        float* const column = state + i * kColumns + lane;
        float next[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) next[u] = keep * column[u * kColumns];
#pragma unroll
        for (int j = 0; j < Tokens; ++j) {
            const float4 f = *reinterpret_cast<const float4*>(factors + j * stride + i);
            next[0] = fmaf(f.x, added[j], next[0]);
            next[1] = fmaf(f.y, added[j], next[1]);
            next[2] = fmaf(f.z, added[j], next[2]);
            next[3] = fmaf(f.w, added[j], next[3]);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) column[u * kColumns] = next[u];
    }
}

}  // namespace h2o::cuda
