// What the kernel tests share: device buffers, random numbers, comparison with a float64 reference.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "h2o/cuda.h"
#include "h2o/operator.h"

namespace test {

extern int failures;
extern int checks;
extern bool once;            // of two equal calls the second is left out
extern std::string context;  // the case that runs, for messages

inline void fail(const char* format, ...) {
    ++failures;
    std::printf("FAIL [%s] ", context.c_str());
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
}

#define EXPECT(condition)                                                          \
    do {                                                                           \
        ++test::checks;                                                            \
        if (!(condition)) test::fail("%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

inline void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    std::printf("CUDA error in [%s]: %s\n", context.c_str(), cudaGetErrorString(error));
    std::exit(1);
}

inline double round_half(double x) {
    return __half2float(__float2half_rn(static_cast<float>(x)));
}

// Memory on the device with a copy on the host. reset() gives an input its values back and fills an output
// with NaN, so that an element that nobody wrote shows.
class Buffer {
  public:
    Buffer(size_t bytes, bool output) : host_(bytes), output_(output) {
        // A kernel may name the address of an empty buffer, never read it.
        must(cudaMalloc(&device_, bytes ? bytes : 16));
    }
    ~Buffer() { cudaFree(device_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void reset() {
        if (host_.empty()) return;
        if (output_)
            must(cudaMemset(device_, 0xff, host_.size()));
        else
            must(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice));
    }
    std::vector<unsigned char> download() const {
        std::vector<unsigned char> bytes(host_.size());
        if (!bytes.empty()) must(cudaMemcpy(bytes.data(), device_, bytes.size(), cudaMemcpyDeviceToHost));
        return bytes;
    }
    template <class T>
    std::vector<T> values() const {
        const std::vector<unsigned char> bytes = download();
        std::vector<T> all(bytes.size() / sizeof(T));
        if (!bytes.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
        return all;
    }
    template <class T = void>
    T* device() {
        return static_cast<T*>(device_);
    }
    std::vector<unsigned char>& host() { return host_; }

  private:
    std::vector<unsigned char> host_;
    void* device_ = nullptr;
    bool output_;
};

// Numbers in the kernels' dtype: the doubles are exactly what the device sees.
struct Numbers {
    std::vector<double> exact;
    Buffer buffer;
    h2o_dtype dtype;

    Numbers(size_t count, h2o_dtype stored)
        : exact(count), buffer(count * (stored == H2O_F16 ? 2 : 4), false), dtype(stored) {}
};

// What a call asks for, and gets.
class Workspace : public Buffer {
  public:
    template <class Call>
    explicit Workspace(Call& call) : Buffer(h2o::cuda::workspace(call), true) {
        call.workspace = device();
        call.workspace_bytes = host().size();
    }
};

template <class Call, class = void>
constexpr bool has_score_heads = false;
template <class Call>
constexpr bool has_score_heads<Call, std::void_t<decltype(Call::Hs)>> = true;
template <class Call, class = void>
constexpr bool has_capacity = false;
template <class Call>
constexpr bool has_capacity<Call, std::void_t<decltype(Call::cap)>> = true;

// A call on the default stream, with the sizes that a shape and a cache have.
template <class Call>
Call call_of(const h2o_shape& shape, const h2o_kv* kv = nullptr) {
    Call call;
    call.shape = shape;
    if constexpr (has_score_heads<Call>) call.Hs = shape.score_heads;
    call.kv = kv;
    if constexpr (has_capacity<Call>)
        if (kv) call.cap = static_cast<int32_t>(kv->rows);
    return call;
}

// Keys and values with all their rows as a cache.
inline h2o_kv cache_of(void* k, void* v, int64_t rows, h2o_dtype dtype = H2O_F16) {
    h2o_kv kv{};
    kv.dtype = dtype;
    kv.k = k;
    kv.v = v;
    kv.rows = rows;
    return kv;
}
inline h2o_kv cache_of(Numbers& k, Numbers& v, int64_t rows) {
    return cache_of(k.buffer.device(), v.buffer.device(), rows, k.dtype);
}

inline void store(std::vector<unsigned char>& bytes, size_t i, h2o_dtype dtype, double& value) {
    const float x = static_cast<float>(value);
    if (dtype == H2O_F16) {
        const __half h = __float2half_rn(x);
        std::memcpy(bytes.data() + i * 2, &h, 2);
        value = __half2float(h);
    } else {
        std::memcpy(bytes.data() + i * 4, &x, 4);
        value = x;
    }
}

template <class R>
void fill_normal(Numbers& numbers, h2o_dtype dtype, double spread, R& random) {
    std::normal_distribution<double> normal(0, spread);
    for (size_t i = 0; i < numbers.exact.size(); ++i) {
        numbers.exact[i] = normal(random);
        store(numbers.buffer.host(), i, dtype, numbers.exact[i]);
    }
    numbers.buffer.reset();
}

inline void fill_ints(Buffer& buffer, const std::vector<int32_t>& values) {
    std::memcpy(buffer.host().data(), values.data(), values.size() * 4);
    buffer.reset();
}

inline std::vector<double> download(const Buffer& buffer, h2o_dtype dtype) {
    std::vector<double> all;
    if (dtype == H2O_F16)
        for (const __half h : buffer.values<__half>()) all.push_back(__half2float(h));
    else
        for (const float x : buffer.values<float>()) all.push_back(x);
    return all;
}

struct Error {
    double maximum = 0, frobenius = 0, scale = 0;
};

inline Error error_of(const std::vector<double>& got, const std::vector<double>& expected) {
    Error e;
    double squares = 0, total = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const bool equal = got[i] == expected[i];  // infinities too
        const double difference = equal ? 0 : std::fabs(got[i] - expected[i]);
        if (!(difference <= e.maximum)) e.maximum = difference;  // NaN stays
        squares += difference * difference;
        if (!std::isfinite(expected[i])) continue;
        e.scale = std::fmax(e.scale, std::fabs(expected[i]));
        total += expected[i] * expected[i];
    }
    e.frobenius = total > 0 ? std::sqrt(squares / total) : std::sqrt(squares);
    return e;
}

// With `low`, the same computation in low precision (or float32's error bound): at most twice its error is
// added.
inline void compare(const char* what, const std::vector<double>& got, const std::vector<double>& expected,
                    const std::vector<double>* low, h2o_dtype dtype = H2O_F32) {
    ++checks;
    if (got.size() != expected.size())
        return fail("%s: %zu elements instead of %zu", what, got.size(), expected.size());
    const Error e = error_of(got, expected);
    double allowed_maximum = 2e-5 * e.scale, allowed_frobenius = dtype == H2O_F16 ? 1e-5 : 1e-6;
    if (low) {
        const Error l = error_of(*low, expected);
        allowed_maximum += 2 * l.maximum;
        allowed_frobenius += 2 * l.frobenius;
    }
    if (!(e.maximum <= allowed_maximum) || !(e.frobenius <= allowed_frobenius))
        fail("%s: max error %.3g (allowed %.3g, largest value %.3g), Frobenius %.3g (allowed %.3g)", what,
             e.maximum, allowed_maximum, e.scale, e.frobenius, allowed_frobenius);
}

// Runs `call` twice from the same inputs; both runs must give the same bytes. With --once, one run is enough.
template <class F>
void run_twice(const std::vector<Buffer*>& buffers, F&& call) {
    std::vector<std::vector<unsigned char>> first;
    for (int run = 0; run < (once ? 1 : 2); ++run) {
        for (Buffer* buffer : buffers) buffer->reset();
        const h2o_status status = call();
        if (status != H2O_OK) fail("returned status %d", static_cast<int>(status));
        must(cudaGetLastError());
        must(cudaDeviceSynchronize());
        for (size_t i = 0; i < buffers.size(); ++i) {
            if (run == 0)
                first.push_back(buffers[i]->download());
            else if (first[i] != buffers[i]->download())
                fail("buffer %zu differs from run to run", i);
        }
    }
    ++checks;
}

struct Options {
    bool small = false;  // few and small cases: for the CPU emulation and for the sanitizers
    unsigned seed = 0;
    int head_size = 0;  // the only one, or 0
};

void test_attention(const Options& options);
void test_windows(const Options& options);
void test_caps(const Options& options);
void test_candidates(const Options& options);
void test_rows(const Options& options);
void test_select(const Options& options);
void test_page_lists(const Options& options);
void test_products(const Options& options);
void test_arguments(const Options& options);
void test_bounds(const Options& options);
void test_far(const Options& options);

}  // namespace test
