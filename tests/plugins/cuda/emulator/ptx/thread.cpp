// One thread: its registers, where its addresses lie, and the loop that executes.

#include "../cuda_runtime.h"
#include "../emulator.h"
#include "../races.h"
#include "kernel.h"

namespace emulator::ptx {

Thread::Thread(const Kernel& kernel, const unsigned char* parameters)
    : kernel_(kernel),
      parameters_(parameters),
      registers_(kernel.registers),
      local_(kernel.local_bytes, 0xff) {
    const unsigned values[] = {threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x, blockDim.y, blockDim.z,
                               blockIdx.x,  blockIdx.y,  blockIdx.z,  gridDim.x,  gridDim.y,  gridDim.z};
    for (size_t n = 0; n < kSpecials; ++n) registers_[n] = values[n];
}

void Thread::run() {
    while (next_ < kernel_.code.size()) {
        const Instruction& instruction = kernel_.code[next_++];
        if (instruction.is_guarded) {
            const bool holds = (registers_[instruction.guard] & 1) != 0;
            if (holds == instruction.is_guard_negated) continue;
        }
        instruction.execute(*this, instruction);
    }
}

unsigned char* Thread::locate(const Instruction& instruction, size_t index, size_t bytes,
                              bool& is_device_memory) {
    const bool is_narrow = instruction.space == Space::kShared;
    const uint64_t base = registers_[instruction.operands[index]];
    uint64_t address = base + static_cast<uint64_t>(instruction.displacement);
    if (is_narrow) address &= 0xffffffffu;
    if (address % bytes != 0) fail("an access to a misaligned address");
    const auto within = [&](unsigned char* begin, size_t size) {
        if (address > size || bytes > size - address) fail("an access outside of its address space");
        return begin + address;
    };
    is_device_memory = false;
    switch (instruction.space) {
        case Space::kParam:
            return within(const_cast<unsigned char*>(parameters_), kernel_.parameter_bytes);
        case Space::kLocal:
            return within(local_.data(), local_.size());
        case Space::kShared:
            return within(shared_memory(), shared_memory_bytes());
        case Space::kGeneric:
        case Space::kGlobal:
            break;
    }
    is_device_memory = true;
    auto* const at = reinterpret_cast<unsigned char*>(address);
    if (!is_device_memory_of_launch(at, bytes)) fail("an access outside of device memory");
    return at;
}

}  // namespace emulator::ptx
