// Loads, stores, asynchronous copies and atomics. Addresses of device memory are those of this process;
// shared, local and parameter memory begin at 0.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "../emulator.h"
#include "../races.h"
#include "kernel.h"

namespace emulator::ptx {
namespace {

using I = const Instruction&;

std::vector<std::string> parts_of(const std::string& opcode) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= opcode.size();) {
        const size_t end = std::min(opcode.find('.', begin), opcode.size());
        parts.push_back(opcode.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// A register keeps a loaded number as wide as it is, its sign spread.
uint64_t widened(const unsigned char* at, I i) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, i.element_bytes);
    const unsigned unused = 64 - 8 * i.element_bytes;
    return i.is_signed ? static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused) : bits;
}

void load(Thread& t, I i) {
    const size_t bytes = size_t{i.element_bytes} * i.elements;
    bool is_device_memory = false;
    const unsigned char* const at = t.locate(i, i.elements, bytes, is_device_memory);
    if (i.space != Space::kParam && i.space != Space::kLocal)
        is_device_memory&& i.bypasses_l1 ? watch_take(at, bytes) : watch_read(at, bytes);
    for (size_t n = 0; n < i.elements; ++n) t.set(i, n, widened(at + n * i.element_bytes, i));
}

void store(Thread& t, I i) {
    const size_t bytes = size_t{i.element_bytes} * i.elements;
    bool is_device_memory = false;
    unsigned char* const at = t.locate(i, 0, bytes, is_device_memory);
    // What blocks tell each other is stored like anything else; how it is read makes the difference.
    if (i.space != Space::kLocal) is_device_memory ? watch_put(at, bytes) : watch_write(at, bytes);
    for (size_t n = 0; n < i.elements; ++n) {
        const auto bits = t.get<uint64_t>(i, 1 + n);
        std::memcpy(at + n * i.element_bytes, &bits, i.element_bytes);
    }
}

template <int BYTES>
void copy_to_shared(Thread& t, I i) {
    const int valid = t.get<int32_t>(i, 3);
    if (valid < 0 || valid > BYTES) fail("a cp.async of more bytes than it copies");
    bool is_device_memory = false;
    Instruction target = i;
    target.space = Space::kShared;
    unsigned char* const to = t.locate(target, 0, BYTES, is_device_memory);
    const unsigned char* from = nullptr;
    Instruction source = i;
    source.space = Space::kGlobal;
    // An address of which nothing is read may be any.
    from = valid > 0 ? t.locate(source, 1, BYTES, is_device_memory)
                     : reinterpret_cast<const unsigned char*>(t.get<uint64_t>(i, 1));
    copy_async(to, from, BYTES, valid);
}

uint32_t add(uint32_t old, uint32_t operand) {
    return old + operand;
}
uint32_t increment(uint32_t old, uint32_t most) {
    return old >= most ? 0 : old + 1;
}
uint32_t lower(uint32_t old, uint32_t operand) {
    return std::min(old, operand);
}
uint32_t higher_signed(uint32_t old, uint32_t operand) {
    return static_cast<int32_t>(old) < static_cast<int32_t>(operand) ? operand : old;
}

// Threads run one at a time.
template <uint32_t (*F)(uint32_t, uint32_t)>
void atomic(Thread& t, I i) {
    bool is_device_memory = false;
    unsigned char* const at = t.locate(i, 1, 4, is_device_memory);
    uint32_t old;
    std::memcpy(&old, at, 4);
    const uint32_t now = F(old, t.get<uint32_t>(i, 2));
    std::memcpy(at, &now, 4);
    t.set(i, 0, old);
}

// ld.global.nc.v4.u32 and its like, after the first word.
void decode_access(const std::vector<std::string>& parts, Instruction& instruction) {
    instruction.elements = 1;
    for (size_t n = 1; n < parts.size(); ++n) {
        const std::string& part = parts[n];
        if (part == "global")
            instruction.space = Space::kGlobal;
        else if (part == "shared")
            instruction.space = Space::kShared;
        else if (part == "local")
            instruction.space = Space::kLocal;
        else if (part == "param")
            instruction.space = Space::kParam;
        else if (part == "cg")
            instruction.bypasses_l1 = true;
        else if (part == "nc")
            continue;
        else if (part == "v2" || part == "v4")
            instruction.elements = static_cast<uint8_t>(part[1] - '0');
        else if (n + 1 == parts.size()) {
            instruction.is_signed = part[0] == 's';
            instruction.element_bytes = static_cast<uint8_t>(std::stoi(part.substr(1)) / 8);
        } else
            throw std::runtime_error("a load or store with ." + part);
    }
}

}  // namespace

bool decode_memory_operation(const std::string& opcode, Instruction& instruction) {
    const std::vector<std::string> parts = parts_of(opcode);
    if (parts[0] == "ld" || parts[0] == "st") {
        decode_access(parts, instruction);
        instruction.execute = parts[0] == "ld" ? load : store;
    } else if (opcode == "atom.global.inc.u32") {
        instruction.space = Space::kGlobal;
        instruction.execute = atomic<increment>;
    } else if (opcode == "atom.shared.add.u32") {
        instruction.space = Space::kShared;
        instruction.execute = atomic<add>;
    } else if (opcode == "atom.shared.min.u32") {
        instruction.space = Space::kShared;
        instruction.execute = atomic<lower>;
    } else if (opcode == "atom.shared.max.s32") {
        instruction.space = Space::kShared;
        instruction.execute = atomic<higher_signed>;
    } else if (opcode == "cp.async.cg.shared.global") {
        instruction.execute = copy_to_shared<16>;
    } else if (opcode == "cp.async.ca.shared.global") {
        instruction.execute = copy_to_shared<4>;
    } else {
        return false;
    }
    return true;
}

}  // namespace emulator::ptx
