// Prefetches memory where no hardware prefetcher predicts the next address: rows of one head alternate with
// those of others.
#pragma once

namespace {

constexpr std::size_t kLine = 64;  // bytes

// Must be inlined: GCC treats a function that only prefetches as empty, and drops the call.
__attribute__((always_inline)) inline void fetch(const void* from, int64_t bytes) {
    const char* const begin = static_cast<const char*>(from);
    const char* const line = begin - reinterpret_cast<std::uintptr_t>(begin) % kLine;
    for (const char* at = line; at < begin + bytes; at += kLine) Simd::prefetch(at);
}

}  // namespace
