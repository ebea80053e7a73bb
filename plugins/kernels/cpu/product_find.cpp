// Which products this machine runs, and the best of them.
#include <cstring>

#include "product.h"
#include "x86/processor.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM  // missing in older headers
#define HWCAP2_I8MM (1ul << 13)
#endif
#endif

namespace h2o {
namespace {

#if defined(__x86_64__)
// Tables of several files are joined here, where the compiler may use the baseline's instructions alone:
// every processor runs this code, to compare tables.

// Those of avx512vnni, which round rows to bfloat16 too.
const h2o_products* avx512bf16_products() {
    static const h2o_products table = [] {
        h2o_products products = *avx512vnni_products();
        products.isa = "avx512bf16";
        products.bfloat16 = *avx512_bfloat16_products();
        products.bfloat16.widen = nullptr;  // products of integers are faster (measured on Zen 5)
        return products;
    }();
    return &table;
}

// Those of avx512bf16, with products by tiles.
const h2o_products* amx_products() {
    static const h2o_products table = [] {
        const IntegerTiles& tiles = *amx_integer_tiles();
        h2o_products products = *avx512bf16_products();
        products.isa = "amx";
        products.rows = tiles.rows;
        products.panels = tiles.panels;
        products.spare_rows = tiles.spare_rows;
        products.multiply = tiles.multiply;
        products.begin = tiles.begin;
        products.end = tiles.end;
        products.bfloat16 = *amx_bfloat16_tiles();
        products.bfloat16.prepare = avx512_bfloat16_products()->prepare;
        products.bfloat16.widen = avx512_bfloat16_products()->widen;
        return products;
    }();
    return &table;
}
#endif

// Whether they are no slower than those behind them. VDPBF16PS multiplies twice as many numbers a cycle as
// float32 instructions on AMD's processors, and 0.6 times as many on Intel's (measured on Emerald Rapids).
bool is_faster(const h2o_products* kernels) {
#if defined(__x86_64__)
    if (kernels == avx512bf16_products()) return !__builtin_cpu_is("intel");
#endif
    return kernels != nullptr;
}

bool runs_here(const h2o_products* kernels) {
#if defined(__x86_64__)
    if (kernels == avx512vnni_products()) return has_avx512_vnni();
    if (kernels == amx_products()) {
        static const bool right = runs_here(avx512bf16_products()) && has_amx(kAmxInt8 | kAmxBFloat16) &&
                                  amx_int8_is_right() && amx_bfloat16_is_right();
        return right;
    }
    if (kernels == avx512bf16_products()) return has_avx512_vnni() && has_avx512_bfloat16();
    if (kernels == avxvnni_products()) return has_avx_vnni();
    if (kernels == avx2_products()) return has_avx2();
#elif defined(__aarch64__) && defined(__linux__)
    if (kernels == i8mm_products()) return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    if (kernels == dotprod_products()) return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    return kernels != nullptr;
}

}  // namespace

const FloatProducts& bfloat16_products_of(const h2o_products* kernels) {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long kHwcap2Bf16 = 1UL << 14;  // HWCAP2_BF16, which older headers lack
    const bool has_neon = kernels == i8mm_products() || kernels == dotprod_products();
    if (has_neon && (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0) return *neon_bfloat16_products();
#endif
    return kernels->bfloat16;
}

}  // namespace h2o

h2o_status h2o_products_find(const char* isa, const h2o_products** kernels) {
    if (kernels == nullptr) return H2O_BAD_ARGUMENT;
    const h2o_products* const all[] = {
#if defined(__x86_64__)
        h2o::amx_products(),     h2o::avx512bf16_products(), h2o::avx512vnni_products(),
        h2o::avxvnni_products(), h2o::avx2_products(),
#elif defined(__aarch64__) && defined(__linux__)
        h2o::i8mm_products(), h2o::dotprod_products(),
#endif
        h2o::scalar_products()};
    *kernels = nullptr;
    for (const h2o_products* table_of : all) {
        const bool wanted = isa == nullptr ? h2o::is_faster(table_of) : std::strcmp(isa, table_of->isa) == 0;
        if (wanted && h2o::runs_here(table_of)) {
            *kernels = table_of;
            return H2O_OK;
        }
    }
    return H2O_UNSUPPORTED;
}

const char* h2o_products_isa(const h2o_products* kernels) {
    return kernels->isa;
}

int h2o_products_multiply_bfloat16(const h2o_products* kernels) {
    return h2o::bfloat16_products_of(kernels).numbers == 2;
}

int h2o_products_can_widen(const h2o_products* kernels) {
    return h2o::bfloat16_products_of(kernels).widen != nullptr;
}
