// Activations as integers: a block's have a scale of 1/127 of its largest magnitude. What is left is at most
// half a step, and gets steps of 1/127 of that. In front of it, where a product is asked for one, the gate of
// an MLP.
#pragma once

namespace {

using h2o::Rounded;
using h2o::RowOfBlocks;

constexpr float kTiny = 1e-30f;  // what is smaller counts as 0
constexpr float kRest = 254.0f;  // steps of the second part in one of the first
constexpr int64_t kMostBlock = 256;

// silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
inline void gate_block(const float* gate, const float* up, int64_t count, float* out) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec x = S::load(gate + i), negative = S::sub(S::zero(), x);
        const S::Vec e = exp_nonpositive(S::sub(S::zero(), S::max(x, negative)));
        const S::Vec numerator = S::select_le(x, S::zero(), S::mul(x, e), x);
        const S::Vec silu = S::div(numerator, S::add(S::set(1.0f), e));
        S::store(out + i, S::mul(silu, S::load(up + i)));
    }
}

// `wrong` is 0, or not a number where x is not finite.
inline float largest_of(const float* x, int64_t count, float* wrong) {
    using S = Simd;
    S::Vec top = S::zero(), sum = S::zero();
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec value = S::load(x + i);
        top = S::max(top, S::max(value, S::sub(S::zero(), value)));
        sum = S::fma(value, S::zero(), sum);
    }
    float lanes[S::kWidth], largest = 0.0f;
    S::store(lanes, top);
    for (float lane : lanes) largest = lane > largest ? lane : largest;
    *wrong = S::sum(sum);
    return largest;
}

// Returns the sum of the integers.
inline float round_block(const float* x, int64_t count, float inverse, int8_t* q) {
    using S = Simd;
    S::Vec sum = S::zero();
    for (int64_t i = 0; i < count; i += S::kWidth) {
        S::store_int8(q + i, S::mul(S::load(x + i), S::set(inverse)), S::kWidth);
        sum = S::add(sum, S::load_int8(q + i, S::kWidth));
    }
    return S::sum(sum);
}

// What `q` leaves of x.
inline void leave_block(const float* x, int64_t count, float scale, const int8_t* q, float* rest) {
    using S = Simd;
    for (int64_t i = 0; i < count; i += S::kWidth) {
        const S::Vec kept = S::load_int8(q + i, S::kWidth);
        S::store(rest + i, S::fma(kept, S::set(-scale), S::load(x + i)));
    }
}

void round_row(const RowOfBlocks& row, const Rounded& out) {
    const int64_t blocks = row.inputs / row.block;
    float values[kMostBlock];
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t at = b * row.block;
        const float* x = row.x + at;
        if (row.up != nullptr) {
            gate_block(x, row.up + at, row.block, values);
            x = values;
        }
        float wrong;
        const float largest = largest_of(x, row.block, &wrong);
        const float scale = largest / 127.0f, inverse = largest > kTiny ? 127.0f / largest : 0.0f;
        const auto keep = [&](int64_t to, float step, float sum) {
            out.scales[to] = step + wrong;
            out.starts[to] = -static_cast<int32_t>(sum) * row.surplus;
            out.sums[to] = (step + wrong) * sum;
        };
        keep(b, scale, round_block(x, row.block, inverse, out.q + at));
        if (row.parts == 2) {
            leave_block(x, row.block, scale, out.q + at, values);
            int8_t* const q = out.q + row.inputs + at;
            keep(blocks + b, scale / kRest, round_block(values, row.block, kRest * inverse, q));
        }
    }
}

}  // namespace
