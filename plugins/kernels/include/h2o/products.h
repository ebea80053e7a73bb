// Products of activations with integer weights in blocks, or with floats, on CPUs. Raw pointers, no framework
// types, no exceptions, no allocations and no threads: the caller divides rows and panels.
//
// y [n, N] = x [n, K] w, where w [K, N] has 4 or 8 bits, and a scale and perhaps an offset for every `block`
// weights along K. Activations become 8-bit integers in the same blocks. So arithmetic inside a block is
// exact in int32; blocks are added in float32, in order.
//
// A panel is 16 columns. The layout follows the instructions for small integers, which read four weights of a
// column at a time. 8 bits: [panels][K / 4][16][4], each 128 more than it is. 4 bits: of a block of such
// fours the first half in the low halves of bytes, the second half in the high ones, each 8 more than it is:
// [panels][K / 8][16][4]. 32 bits are floats, and neither they nor activations are rounded: [panels][K][16].
// 16 bits are bfloat16 in pairs, [panels][K / 2][16][2]: activations are rounded to bfloat16 as well, and
// their products are added in float32. Columns past N are there, and their results are not stored.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "h2o/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { H2O_PANEL = 16 };  // columns

// The kernels of one instruction set.
typedef struct h2o_products h2o_products;

typedef struct h2o_block_matrix {
    int64_t inputs;        // K, a multiple of block, or of 16 if weights are floats or bfloat16
    int64_t outputs;       // N
    int64_t block;         // a multiple of 16, at most 256; floats have none
    int bits;              // 4, 8, 16 or 32
    int parts;             // 1, or 2: the rounding error of an activation is rounded again, 15 bits together;
                           // 0 with integers: they and activations become bfloat16, each rounded once
    const void* weights;   // panels of 16 columns, as described above
    const float* scales;   // [panels][K / block][16]; floats have none
    const float* offsets;  // alike, or null
} h2o_block_matrix;

// Integers [N, K]: values[n * output_stride + k * input_stride], from -8 to 7 where they become 4 bits. One
// of the strides is 1.
typedef struct h2o_integers {
    const int8_t* values;
    int64_t outputs, inputs;              // N and K
    int64_t output_stride, input_stride;  // elements from one output or input to the next
} h2o_integers;

// Packs `panels` panels of 4 or 8 bits from panel `first` on; columns past N become zeros. packed: of these
// panels alone.
void h2o_products_pack(const h2o_integers* q, int bits, int64_t block, int64_t first, int64_t panels,
                       uint8_t* packed);

// isa: null for the best of this machine, or one of "scalar", "avx2", "avxvnni", "avx512vnni", "avx512bf16",
// "amx", "dotprod", "i8mm". H2O_UNSUPPORTED if the build or the machine lacks it.
h2o_status h2o_products_find(const char* isa, const h2o_products** kernels);
const char* h2o_products_isa(const h2o_products* kernels);

// Whether rows become bfloat16 where weights are: otherwise floats are multiplied with such weights.
int h2o_products_multiply_bfloat16(const h2o_products* kernels);

// Whether there are products with parts = 0.
int h2o_products_can_widen(const h2o_products* kernels);

// Whether sizes agree: H2O_OK or H2O_BAD_ARGUMENT. Does not look at pointers.
h2o_status h2o_products_check(const h2o_block_matrix* matrix);

// Rows of x in a tile. Units of work should have a multiple of it.
int64_t h2o_products_tile_rows(const h2o_products* kernels, const h2o_block_matrix* matrix);

// Bytes of scratch for n rows of x, aligned to 64.
size_t h2o_products_scratch_bytes(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n);

// The function of an MLP's gate, f(x, up). SILU: x / (1 + exp(-x)) up. GELU: up times x times the normal
// distribution at x, by a tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. CLAMPED: x / (1 +
// exp(-gain x)) (up + 1), where x is `limit` at most and up is between -limit and limit.
typedef enum h2o_gate_function { H2O_SILU = 0, H2O_GELU = 1, H2O_CLAMPED = 2 } h2o_gate_function;

typedef struct h2o_gate {
    h2o_gate_function function;
    float limit, gain;  // of CLAMPED
} h2o_gate;

// x [n, K] and its preparation: with up [n, K], f(x, up), the gate of an MLP; with norm [K], RMSNorm, x /
// sqrt(mean of a row's x^2 + epsilon) * norm; with neither, x itself. Not both. With `order` row i is row
// order[i] of x and up.
typedef struct h2o_activations {
    const float* x;        // [n, K]
    const float* up;       // [n, K], or null
    const float* norm;     // [K], or null
    float epsilon;         // with norm
    h2o_gate gate;         // with up
    const int64_t* order;  // [n] rows of x and up, or null
} h2o_activations;

// Whether rows need no preparation: floats of 32 bits in their order with neither, but for some K.
int h2o_products_as_it_is(const h2o_block_matrix* matrix, const h2o_activations* x);

// Prepares rows first ... first + count -> scratch, as integers if weights are integers. A row with NaN or
// infinity has results that are not finite.
void h2o_products_prepare(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                          const h2o_activations* x, int64_t first, int64_t count, void* scratch);

// Some columns of all n rows, of a matrix of one part: x and up are [n, columns] and become columns
// first_column ... first_column + columns of what is prepared, both multiples of block, or of 16 where
// weights are floats. Without norm and order.
void h2o_products_prepare_columns(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                                  const h2o_activations* x, int64_t first_column, int64_t columns,
                                  void* scratch);

// The same rows of y [n, N], for some panels. `prepared` is that scratch, or x if it needs no preparation.
// addend [n, N], which may be y, is added; or null.
void h2o_products_multiply(const h2o_products* kernels, const h2o_block_matrix* matrix, int64_t n,
                           const void* prepared, int64_t first, int64_t count, int64_t first_panel,
                           int64_t panels, const float* addend, float* y);

// Rotates the same rows of y [n, heads, size] in place: their halves a, b become a cos - b sin, b cos + a
// sin, with cos and sin [n, size / 2]. size is a multiple of 32.
void h2o_products_rotate(const h2o_products* kernels, int64_t heads, int64_t size, const float* cos,
                         const float* sin, int64_t first, int64_t count, float* y);

#ifdef __cplusplus
}
#endif
