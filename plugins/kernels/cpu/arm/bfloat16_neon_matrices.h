// Blocks of attention in bfloat16 on AArch64 with BF16, whose instruction multiplies matrices: four values of
// two columns with four of two rows, added in float32.
#pragma once

#include "arm/bfloat16_neon.h"
#include "isa.h"

namespace {

struct BFloat16 : BFloat16Pairs {
    static constexpr bool kMatrices = true;
    static constexpr bool kTiles = false;
    static constexpr int kScales = 0;
    using Values = BFloat16;

    // As multiply_vectors, for a panel. A step takes two words of every row and column. Of an odd depth, the
    // last words meet zeros.
    template <bool kAdd, int kCount>
    __attribute__((always_inline)) static void multiply(int64_t depth, const float* __restrict rows,
                                                        const float* __restrict columns,
                                                        float* __restrict out) {
        Sums<kCount> sums;
        kAdd ? sums.load(out) : sums.clear();
        int64_t k = 0;
        for (; k + 2 <= depth; k += 2, rows += 2 * h2o::kLanes, columns += 2 * h2o::kPanel)
            sums.add(rows, rows + h2o::kLanes, columns, columns + h2o::kPanel);
        if (k < depth) {
            const float zeros[kCount * 4 > h2o::kPanel ? kCount * 4 : h2o::kPanel] = {};
            sums.add(rows, zeros, columns, zeros);
        }
        sums.store(out);
    }

  private:
    // Of a panel's columns and kCount vectors of rows. A vector has two columns of two rows: the sums of
    // column 0, then of column 1.
    template <int kCount>
    struct Sums {
        static constexpr int kPairs = h2o::kPanel / 2;  // of columns
        float32x4_t of[kPairs][2 * kCount];

        __attribute__((always_inline)) void clear() {
            for (int i = 0; i < kPairs; ++i) {
                for (int j = 0; j < 2 * kCount; ++j) of[i][j] = vdupq_n_f32(0.0f);
            }
        }
        __attribute__((always_inline)) void load(const float* out) {
#pragma GCC unroll 4
            for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 3
                for (int j = 0; j < kCount; ++j) {
                    const float* const at = out + 2 * i * h2o::kLanes + 4 * j;
                    exchange(vld1q_f32(at), vld1q_f32(at + h2o::kLanes), &of[i][2 * j], &of[i][2 * j + 1]);
                }
            }
        }
        __attribute__((always_inline)) void store(float* out) const {
#pragma GCC unroll 4
            for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 3
                for (int j = 0; j < kCount; ++j) {
                    float32x4_t first, second;
                    exchange(of[i][2 * j], of[i][2 * j + 1], &first, &second);
                    float* const at = out + 2 * i * h2o::kLanes + 4 * j;
                    vst1q_f32(at, first);
                    vst1q_f32(at + h2o::kLanes, second);
                }
            }
        }
        // Two words of each row and of each column.
        __attribute__((always_inline)) void add(const float* rows, const float* next_rows,
                                                const float* columns, const float* next_columns) {
            bfloat16x8_t column[kPairs];
#pragma GCC unroll 2
            for (int i = 0; i < kPairs; i += 2)
                interleave(columns + 2 * i, next_columns + 2 * i, &column[i], &column[i + 1]);
#pragma GCC unroll 3
            for (int j = 0; j < kCount; ++j) {
                asm("" ::: "memory");  // GCC 12 would load all rows at once, and keep sums in memory instead
                bfloat16x8_t row[2];
                interleave(rows + 4 * j, next_rows + 4 * j, &row[0], &row[1]);
#pragma GCC unroll 4
                for (int i = 0; i < kPairs; ++i) {
                    of[i][2 * j] = vbfmmlaq_f32(of[i][2 * j], column[i], row[0]);
                    of[i][2 * j + 1] = vbfmmlaq_f32(of[i][2 * j + 1], column[i], row[1]);
                }
            }
        }
    };

    // Swaps the high half of `a` with the low half of `b`.
    static void exchange(float32x4_t a, float32x4_t b, float32x4_t* first, float32x4_t* second) {
        const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
        *first = vreinterpretq_f32_f64(vzip1q_f64(x, y));
        *second = vreinterpretq_f32_f64(vzip2q_f64(x, y));
    }
    // Of four words and the next four: those of the first two rows, and of the others.
    static void interleave(const float* words, const float* next, bfloat16x8_t* first, bfloat16x8_t* second) {
        const float32x4_t a = vld1q_f32(words), b = vld1q_f32(next);
        *first = vreinterpretq_bf16_f32(vzip1q_f32(a, b));
        *second = vreinterpretq_bf16_f32(vzip2q_f32(a, b));
    }
};

}  // namespace
