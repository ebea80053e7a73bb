#include "x86/processor.h"

namespace h2o {

bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx_vnni() {
    return has_avx2() && __builtin_cpu_supports("avxvnni");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bfloat16() {
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

}  // namespace h2o

#if defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace h2o {
namespace {

constexpr uint32_t kTiles = 1u << 24;              // of leaf 7, in EDX
constexpr uint32_t kSavesStates = 1u << 27;        // of leaf 1, in ECX: XGETBV tells what the system saves
constexpr uint64_t kTileStates = 3u << 17;         // configuration and data
constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, which older headers lack

bool saves_tiles() {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSavesStates) == 0) return false;
    uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & kTileStates) == kTileStates;
}

// Asks for all threads of this process, also those that run.
bool asked() {
    static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return granted;
}

}  // namespace

bool has_amx(uint32_t numbers) {
    const uint32_t wanted = numbers | kTiles;
    uint32_t a = 0, b = 0, c = 0, d = 0;
    const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
    return known && (d & wanted) == wanted && saves_tiles() && asked();
}

}  // namespace h2o

#else

bool h2o::has_amx(uint32_t) {
    return false;
}

#endif
