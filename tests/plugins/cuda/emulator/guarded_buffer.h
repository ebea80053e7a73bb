// Memory whose last byte is followed by an unmapped page, so that reading past it is a fault.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>

namespace emulator {

class GuardedBuffer {
  public:
    // Throws std::bad_alloc.
    explicit GuardedBuffer(size_t bytes) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t rounded = (bytes + 15) / 16 * 16;
        mapped_ = (rounded + page - 1) / page * page + page;
        void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<unsigned char*>(base);
        mprotect(base_ + mapped_ - page, page, PROT_NONE);
        data_ = base_ + mapped_ - page - rounded;
        filled_ = rounded <= kMostFilled ? rounded : 0;
        fill();
    }
    ~GuardedBuffer() { munmap(base_, mapped_); }
    GuardedBuffer(const GuardedBuffer&) = delete;
    GuardedBuffer& operator=(const GuardedBuffer&) = delete;

    unsigned char* data() const { return data_; }
    void fill() { std::memset(data_, 0xff, filled_); }  // NaN, whatever the type

  private:
    static constexpr size_t kMostFilled = size_t{256} << 20;  // more is only reserved, and zeros

    unsigned char* base_;
    unsigned char* data_;
    size_t mapped_, filled_;
};

}  // namespace emulator
