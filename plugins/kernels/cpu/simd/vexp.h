// exp for the softmax: x = score - row maximum, never above zero.
//
//     exp(x) = 2^n * 2^t,  n = round(x * log2 e),  t = x * log2 e - n in [-1/2, 1/2]
//
// log2 e is the sum of two floats and t is rounded once, so its absolute error is near 2^-26 over the whole
// range. 2^t is a minimax polynomial of degree 5 with 2^0 exactly 1; its own relative error is 9.2e-8. The
// total relative error is within 2.5e-7 on [-87.33, 0] (tested). Below float32's normal range the result is
// 0.
#pragma once

namespace {

constexpr float kExpLowest = -87.33654f;  // ln of the smallest normal float32

inline Simd::Vec exp_nonpositive(Simd::Vec x) {
    using S = Simd;
    const S::Vec magic = S::set(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const S::Vec log2e_hi = S::set(1.44269502162933349609375f);
    const S::Vec log2e_lo = S::set(1.92596299112661746887e-8f);
    const S::Vec biased = S::fma(x, log2e_hi, magic);
    const S::Vec n = S::sub(biased, magic);
    S::Vec t = S::fms(x, log2e_hi, n);
    t = S::fma(x, log2e_lo, t);
    S::Vec p = S::set(1.32647273e-3f);
    p = S::fma(p, t, S::set(9.67151299e-3f));
    p = S::fma(p, t, S::set(5.55073358e-2f));
    p = S::fma(p, t, S::set(2.40222424e-1f));
    p = S::fma(p, t, S::set(6.93147004e-1f));
    p = S::fma(p, t, S::set(1.0f));
    return S::scale_or_zero(p, n, biased, x, S::set(kExpLowest));
}

// The same for results that are rounded to 8 bits: relative error within 1.1e-4, with a polynomial of degree
// 3.
inline Simd::Vec exp_to_round(Simd::Vec x) {
    using S = Simd;
    const S::Vec magic = S::set(12582912.0f);
    const S::Vec log2e = S::set(1.44269502f);
    const S::Vec biased = S::fma(x, log2e, magic);
    const S::Vec n = S::sub(biased, magic);
    const S::Vec t = S::fms(x, log2e, n);
    S::Vec p = S::set(5.500893e-2f);
    p = S::fma(p, t, S::set(2.4221096e-1f));
    p = S::fma(p, t, S::set(6.9328293e-1f));
    p = S::fma(p, t, S::set(1.0f));
    return S::scale_or_zero(p, n, biased, x, S::set(kExpLowest));
}

// cap * tanh(x / cap), with tanh(|y|) = (1 - e) / (1 + e), e = exp(-2 |y|): within 1e-7 of the cap.
inline Simd::Vec soft_capped(Simd::Vec x, Simd::Vec cap, Simd::Vec steep) {  // steep = -2 / cap
    using S = Simd;
    const S::Vec one = S::set(1.0f), opposite = S::sub(S::zero(), x);
    const S::Vec e = exp_nonpositive(S::mul(S::max(x, opposite), steep));
    const S::Vec size = S::mul(cap, S::div(S::sub(one, e), S::add(one, e)));
    return S::select_le(S::zero(), x, size, S::sub(S::zero(), size));
}

}  // namespace
