// out[i * stride + j] = in[j][i] * scale for i, j < 8; without kScale, in[j][i] itself, bits as they are.
#pragma once

namespace {

#if defined(__AVX2__)

template <bool kScale = true>
inline void transpose_8x8(const float* const* in, float scale, float* out, int64_t stride) {
    const __m256 factor = _mm256_set1_ps(scale);
    __m256 a[8], b[8];
    // First combine rows 0-3 with rows 4-7 in each register: two 4 x 4 transposes side by side remain.
    for (int i = 0; i < 4; ++i) {
        const __m256 low = kScale ? _mm256_mul_ps(_mm256_loadu_ps(in[i]), factor) : _mm256_loadu_ps(in[i]);
        const __m256 high =
            kScale ? _mm256_mul_ps(_mm256_loadu_ps(in[i + 4]), factor) : _mm256_loadu_ps(in[i + 4]);
        a[i] = _mm256_permute2f128_ps(low, high, 0x20);
        a[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        b[i + 2] = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
    }
    for (int i = 0; i < 8; i += 4) {
        float* row = out + i * stride;
        _mm256_storeu_ps(row, _mm256_shuffle_ps(b[i], b[i + 2], 0x44));
        _mm256_storeu_ps(row + stride, _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
        _mm256_storeu_ps(row + 2 * stride, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44));
        _mm256_storeu_ps(row + 3 * stride, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee));
    }
}

#else

template <bool kScale = true>
inline void transpose_8x8(const float* const* in, float scale, float* out, int64_t stride) {
    for (int j = 0; j < 8; ++j) {
        for (int i = 0; i < 8; ++i) {
            if constexpr (kScale) {
                out[i * stride + j] = in[j][i] * scale;
            } else {
                __builtin_memcpy(out + i * stride + j, in[j] + i, sizeof(float));
            }
        }
    }
}

#endif

// Transposes eight words of eight rows.
inline void turn(const float (*words)[8], int64_t rows, int64_t columns, float* out, int64_t stride) {
    if (rows == 8 && columns == 8) {
        const float* const in[] = {words[0], words[1], words[2], words[3],
                                   words[4], words[5], words[6], words[7]};
        return transpose_8x8<false>(in, 1.0f, out, stride);
    }
    for (int64_t i = 0; i < columns; ++i) {
        for (int64_t j = 0; j < rows; ++j) __builtin_memcpy(out + i * stride + j, &words[j][i], 4);
    }
}

}  // namespace
