#include "context.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "x86/processor.h"

#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/mman.h>
#endif

namespace h2o {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
#if defined(__aarch64__) && defined(__linux__)
constexpr unsigned long kHwcap2Bf16 = 1ul << 14;  // HWCAP2_BF16, missing in older headers
#endif

#if defined(__x86_64__)
// Those of avx512, whose blocks in bfloat16 are products of tiles.
const KernelTable* amx_kernels() {
    static const KernelTable made = [] {
        KernelTable table = *avx512_kernels();
        table.name = "amx";
        return table;
    }();
    return &made;
}
#endif

bool runs_here(const KernelTable* table) {
#if defined(__x86_64__)
    if (table == amx_kernels()) {
        static const bool right = has_avx512_bfloat16() && has_amx(kAmxBFloat16) && amx_bfloat16_is_right();
        return right;
    }
    if (table == avx512_kernels()) return has_avx512();
    if (table == avx2_kernels()) return has_avx2();
#endif
    return table != nullptr;
}

// The best table that this machine runs, or the requested one.
const KernelTable* choose(const char* name) {
    const KernelTable* const tables[] = {
#if defined(__x86_64__)
        amx_kernels(), avx512_kernels(), avx2_kernels(),
#elif defined(__aarch64__)
        neon_kernels(),
#endif
        scalar_kernels()};
    for (const KernelTable* table : tables) {
        if ((name == nullptr || std::strcmp(name, table->name) == 0) && runs_here(table)) return table;
    }
    return nullptr;
}

// The table's kernels in a precision, or null if this machine cannot run them.
const BlockAttention* blocks_of(const KernelTable* table, h2o_precision precision) {
    if (precision == H2O_FLOAT32) return &table->float32;
    if (precision == H2O_BFLOAT16) {
#if defined(__x86_64__)
        if (table == amx_kernels()) return amx_bfloat16();
        if (table == avx512_kernels() && has_avx512_bfloat16()) return avx512_bfloat16();
#elif defined(__aarch64__) && defined(__linux__)
        if (table == neon_kernels() && (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0) return neon_bfloat16();
#endif
        return table == scalar_kernels() ? scalar_bfloat16() : nullptr;
    }
#if defined(__x86_64__)
    if (precision == H2O_INT16) {
        if (table == avx2_kernels()) return avx2_int16();
        return table != scalar_kernels() && has_avx512_vnni() ? avx512_int16() : nullptr;
    }
#endif
    return nullptr;
}

}  // namespace

Arena::~Arena() {
    std::free(data_);
}

char* Arena::at_least(size_t bytes) {
    if (bytes <= size_) return data_;
    const size_t align = bytes >= kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    void* fresh = nullptr;
    if (posix_memalign(&fresh, align, rounded) != 0) throw std::bad_alloc();
#if defined(__linux__)
    if (align == kHugePage) madvise(fresh, rounded, MADV_HUGEPAGE);  // a hint: refusal only costs speed
#endif
    std::free(data_);
    data_ = static_cast<char*>(fresh);
    size_ = rounded;
    return data_;
}

h2o_status check_shape(const h2o_shape* shape) {
    if (shape == nullptr || shape->query_heads <= 0 || shape->kv_heads <= 0 || shape->head_size <= 0) {
        return H2O_BAD_ARGUMENT;
    }
    if (shape->query_heads % shape->kv_heads != 0 || shape->value_size < 0) return H2O_BAD_ARGUMENT;
    const int64_t sets = shape->score_heads;
    if (sets <= 0 || (sets != shape->query_heads && shape->kv_heads % sets != 0)) return H2O_BAD_ARGUMENT;
    if (shape->dtype != H2O_F32 && shape->dtype != H2O_F16) return H2O_UNSUPPORTED;
    return shape->head_size % 8 == 0 && shape->value_size % 4 == 0 ? H2O_OK : H2O_UNSUPPORTED;
}

h2o_status check_heads(const h2o_shape* shape) {
    const h2o_status status = check_shape(shape);
    if (status != H2O_OK) return status;
    return shape->score_heads >= shape->kv_heads ? H2O_OK : H2O_UNSUPPORTED;
}

h2o_status check_alike(const h2o_shape* shape) {
    const h2o_status status = check_heads(shape);
    if (status != H2O_OK) return status;
    return value_size(*shape) == shape->head_size ? H2O_OK : H2O_UNSUPPORTED;
}

bool in_range(const int32_t* memory, int64_t count, int64_t cap) {
    for (int64_t i = 0; i < count; ++i) {
        if (memory[i] < 0 || memory[i] >= cap) return false;
    }
    return true;
}

}  // namespace h2o

namespace h2o {
namespace {

template <class Threads>
h2o_status create(Threads threads, const char* isa, h2o_precision precision, h2o_cpu** context) {
    if (context == nullptr) return H2O_BAD_ARGUMENT;
    *context = nullptr;
    const KernelTable* table = choose(isa);
    if (table == nullptr) return H2O_UNSUPPORTED;
    const BlockAttention* const blocks = blocks_of(table, precision);
    if (blocks == nullptr) return H2O_UNSUPPORTED;
    try {
        *context = new h2o_cpu(threads, table, blocks);
        return H2O_OK;
    } catch (...) {  // no memory, or no more threads
        return H2O_OUT_OF_WORKSPACE;
    }
}

}  // namespace
}  // namespace h2o

h2o_status h2o_cpu_create(int threads, const char* isa, h2o_precision precision, h2o_cpu** context) {
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    return h2o::create(threads > 0 ? threads : 1, isa, precision, context);
}

bool h2o_cpu_supports(const char* isa, h2o_precision precision) {
    const h2o::KernelTable* const table = h2o::choose(isa);
    return table != nullptr && h2o::blocks_of(table, precision) != nullptr;
}

// Measured: Intel's cores (Emerald Rapids) start one VDPBF16PS every two cycles, beside two VPDPWSSD or two
// FMA a cycle; AMD's (Zen 5) start two. A product of AMX tiles is 256 of them in 16 cycles. With AVX2 alone
// (Zen 3) scores in int16 take 0.6 of the time of those in float32.
h2o_precision h2o_cpu_fastest_precision(void) {
    const bool bfloat16 = h2o_cpu_supports(nullptr, H2O_BFLOAT16),
               int16 = h2o_cpu_supports(nullptr, H2O_INT16);
#if defined(__x86_64__)
    const bool tiles = h2o::choose(nullptr) == h2o::amx_kernels();
    const bool slow = int16 && !tiles && __builtin_cpu_is("intel");
#else
    const bool slow = false;
#endif
    if (bfloat16 && !slow) return H2O_BFLOAT16;
    return int16 ? H2O_INT16 : H2O_FLOAT32;
}

h2o_status h2o_cpu_create_on(const h2o_executor* executor, const char* isa, h2o_cpu** context) {
    if (executor == nullptr || executor->run == nullptr || executor->threads <= 0) return H2O_BAD_ARGUMENT;
    return h2o::create(*executor, isa, H2O_FLOAT32, context);
}

void h2o_cpu_destroy(h2o_cpu* context) {
    delete context;
}

int h2o_cpu_threads(const h2o_cpu* context) {
    return context->pool.size();
}

const char* h2o_cpu_isa(const h2o_cpu* context) {
    return context->kernels->name;
}

size_t h2o_cpu_scratch_bytes(const h2o_cpu* context) {
    size_t bytes = context->shared.size();
    for (const h2o::Arena& arena : context->arenas) bytes += arena.size();
    return bytes;
}
