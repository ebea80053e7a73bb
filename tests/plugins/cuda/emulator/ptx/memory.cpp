// Loads, stores, asynchronous copies and atomics. Addresses of device memory are those of this process;
// shared, local and parameter memory begin at 0.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "../emulator.h"
#include "../races.h"
#include "warp.h"

namespace emulator::ptx {
namespace {

using I = const Instruction&;

constexpr size_t kMostElements = 4;

template <class T>
using Widened = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;

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
template <class T>
void load(Warp& w, I i) {
    const size_t bytes = sizeof(T) * i.elements;
    const bool is_shared = i.space == Space::kShared;
    const bool is_own = i.space == Space::kParam || i.space == Space::kLocal;
    w.each([&](unsigned lane) {
        const unsigned char* const at = w.locate(i, i.elements, lane, i.space, bytes);
        if (!is_own) i.bypasses_l1 && !is_shared ? watch_take(at, bytes) : watch_read(at, bytes);
        T loaded[kMostElements];
        std::memcpy(loaded, at, bytes);
        for (size_t n = 0; n < i.elements; ++n) w.set(i, n, lane, static_cast<Widened<T>>(loaded[n]));
    });
}

template <class T>
void store(Warp& w, I i) {
    const size_t bytes = sizeof(T) * i.elements;
    w.each([&](unsigned lane) {
        unsigned char* const at = w.locate(i, 0, lane, i.space, bytes);
        // What blocks tell each other is stored like anything else; how it is read makes the difference.
        if (i.space != Space::kLocal)
            i.space == Space::kShared ? watch_write(at, bytes) : watch_put(at, bytes);
        for (size_t n = 0; n < i.elements; ++n) {
            const T stored = w.get<T>(i, 1 + n, lane);
            std::memcpy(at + n * sizeof(T), &stored, sizeof(T));
        }
    });
}

template <int BYTES>
void copy_to_shared(Warp& w, I i) {
    w.each([&](unsigned lane) {
        const int valid = w.get<int32_t>(i, 3, lane);
        if (valid < 0 || valid > BYTES) fail("a cp.async of more bytes than it copies");
        unsigned char* const to = w.locate(i, 0, lane, Space::kShared, BYTES);
        // An address of which nothing is read may be any.
        const unsigned char* const from =
            valid > 0 ? w.locate(i, 1, lane, Space::kGlobal, BYTES)
                      : reinterpret_cast<const unsigned char*>(w.get<uint64_t>(i, 1, lane));
        copy_async(to, from, BYTES, valid);
    });
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
void atomic(Warp& w, I i) {
    w.each([&](unsigned lane) {
        unsigned char* const at = w.locate(i, 1, lane, i.space, 4);
        uint32_t old;
        std::memcpy(&old, at, 4);
        const uint32_t now = F(old, w.get<uint32_t>(i, 2, lane));
        std::memcpy(at, &now, 4);
        w.set(i, 0, lane, old);
    });
}

template <class T>
constexpr Execute kAccess[] = {load<T>, store<T>};

// By the type's letter and width: f32, b32 and u32 are the same bits.
Execute find_access(const std::string& type, bool is_store) {
    if (type == "s8") return kAccess<int8_t>[is_store];
    if (type == "s16") return kAccess<int16_t>[is_store];
    if (type == "s32") return kAccess<int32_t>[is_store];
    const std::string bits = type.substr(1);
    if (bits == "8") return kAccess<uint8_t>[is_store];
    if (bits == "16") return kAccess<uint16_t>[is_store];
    if (bits == "32") return kAccess<uint32_t>[is_store];
    if (bits == "64") return kAccess<uint64_t>[is_store];
    return nullptr;
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
        else if (n + 1 == parts.size())
            instruction.execute = find_access(part, parts[0] == "st");
        else
            throw std::runtime_error("a load or store with ." + part);
    }
}

}  // namespace

bool decode_memory_operation(const std::string& opcode, Instruction& instruction) {
    const std::vector<std::string> parts = parts_of(opcode);
    if (parts[0] == "ld" || parts[0] == "st") {
        decode_access(parts, instruction);
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
