// The most that this machine does with so many threads, as JSON: float32 matrix products through the kernels'
// own register tile (blocked for the caches, operands packed beforehand), and reading and copying memory.
//
//     h2o_machine THREADS [REPETITIONS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "isa.h"
#include "pool.h"
#if defined(__AVX512F__)
#include "x86/simd_avx512.h"
#elif defined(__AVX2__)
#include "x86/simd_avx2.h"
#elif defined(__aarch64__)
#include "arm/simd_neon.h"
#else
#include "scalar/simd_scalar.h"
#endif
// over the instruction set:
#include "simd/multiply.h"

namespace {

using Clock = std::chrono::steady_clock;

template <class Work>
std::vector<double> seconds(int repetitions, Work&& work) {
    work();
    std::vector<double> times;
    for (int i = 0; i < repetitions; ++i) {
        const auto start = Clock::now();
        work();
        times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return times;
}

void report(const char* name, double work, const std::vector<double>& times, const char* end) {
    std::printf("  \"%s\": {\"best\": %.2f, \"median\": %.2f}%s\n", name, work / times.front() / 1e9,
                work / times[times.size() / 2] / 1e9, end);
}

// C = A B with A [rows x depth] and B [depth x columns], both packed as isa.h says. An item is a few strips
// of kLanes rows: a slice of B, held in L2, serves them all, and a strip's slice of A stays in L1.
struct Product {
    static constexpr int64_t kRows = 1536, kColumns = 1024, kDepth = 1536, kStep = 128, kStrips = 4;
    std::vector<float> a = std::vector<float>(kRows * kDepth, 0.5f);
    std::vector<float> b = std::vector<float>(kColumns * kDepth, 0.25f);
    std::vector<float> c = std::vector<float>(kRows * kColumns);

    static constexpr int64_t items() { return kRows / (kLanes * kStrips); }

    void item(int64_t index) {
        for (int64_t k = 0; k < kDepth; k += kStep) {
            for (int64_t strip = index * kStrips; strip < (index + 1) * kStrips; ++strip)
                slice(strip * kLanes, k);
        }
    }

    void slice(int64_t row, int64_t k) {
        const float* const rows = a.data() + row * kDepth + k * kLanes;
        for (int64_t column = 0; column < kColumns; column += kPanel) {
            const float* const panel = b.data() + column * kDepth + k * kPanel;
            float* const out = c.data() + row * kColumns + column * kLanes;
            if (k == 0) {
                multiply_panel<Float32, false, kLanes>(kStep, rows, panel, Packed{}, out);
            } else {
                multiply_panel<Float32, true, kLanes>(kStep, rows, panel, Packed{}, out);
            }
        }
    }
};

float read_all(const float* from, int64_t count) {
    Simd::Vec sum[8];
    for (Simd::Vec& s : sum) s = Simd::zero();
    for (int64_t i = 0; i < count; i += 8 * kWidth) {
        for (int j = 0; j < 8; ++j) sum[j] = Simd::add(sum[j], Simd::load(from + i + j * kWidth));
    }
    float total = 0.0f;
    for (const Simd::Vec& s : sum) total += Simd::sum(s);
    return total;
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
    h2o::Pool pool(threads);

    Product product;
    const auto products = seconds(
        repetitions, [&] { pool.each(Product::items(), [&](int64_t index, int) { product.item(index); }); });

    constexpr int64_t kFloats = int64_t{64} << 20, kPiece = int64_t{1} << 18;  // 256 MiB, 1 MiB
    std::vector<float> from(kFloats, 1.0f), to(kFloats);
    std::vector<float> sums(kFloats / kPiece);
    const auto reads = seconds(repetitions, [&] {
        pool.each(kFloats / kPiece, [&](int64_t piece, int) {
            sums[static_cast<size_t>(piece)] = read_all(from.data() + piece * kPiece, kPiece);
        });
    });
    const auto copies = seconds(repetitions, [&] {
        pool.each(kFloats / kPiece, [&](int64_t piece, int) {
            std::memcpy(to.data() + piece * kPiece, from.data() + piece * kPiece, kPiece * sizeof(float));
        });
    });

    const double flop = 2.0 * Product::kRows * Product::kColumns * Product::kDepth;
    std::printf("{\n  \"isa\": \"%s\", \"threads\": %d,\n", Simd::kName, threads);
    report("matmul_gflops", flop, products, ",");
    report("read_gbps", kFloats * 4.0, reads, ",");
    report("copy_gbps", kFloats * 8.0, copies, ",");
    std::printf("  \"check\": %g\n}\n", static_cast<double>(sums[0] + to[1] + product.c[0]));
    return 0;
}
