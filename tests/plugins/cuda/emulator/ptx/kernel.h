// A kernel as nvcc wrote it in PTX, decoded so that warps of the emulator can execute it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator::ptx {

class Warp;
struct Instruction;
using Execute = void (*)(Warp&, const Instruction&);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// Registers have numbers. A constant is a register that no instruction writes.
struct Instruction {
    static constexpr size_t kMostOperands = 14;  // mma.sync

    Execute execute = nullptr;
    std::array<uint16_t, kMostOperands> operands = {};  // destinations first, vectors element by element
    uint8_t operand_count = 0;

    bool is_guarded = false, is_guard_negated = false;
    uint16_t guard = 0;

    // Of loads and stores.
    Space space = Space::kGeneric;
    bool bypasses_l1 = false;  // .cg: sees what other multiprocessors stored
    uint8_t elements = 0;
    int64_t displacement = 0;

    uint32_t target = 0;  // of a branch: an index into the code
    uint8_t table = 0;    // of lop3
};

struct Kernel {
    struct Parameter {
        size_t offset, bytes;
    };

    std::string name;
    unsigned most_threads = 1024;
    std::vector<Parameter> parameters;
    size_t parameter_bytes = 0, local_bytes = 0;
    std::vector<Instruction> code;
    std::vector<uint64_t> registers;  // as a block begins: constants, and zeros
};

// The first registers of every kernel.
enum Special : uint16_t { kTid = 0, kNtid = 3, kCtaid = 6, kNctaid = 9, kSpecials = 12 };

// `text` is one `.entry`, up to the brace that ends it; `first_line` is where it stands in its file. Throws
// std::runtime_error, with file and line, for what this interpreter does not know.
Kernel decode(const std::string& text, const std::string& file, int first_line);

// The function that executes an instruction, `add.s32` for example, and what of it the name alone tells. Null
// if there is none.
Execute find_arithmetic(const std::string& opcode);
Execute find_warp_operation(const std::string& opcode);
bool decode_memory_operation(const std::string& opcode, Instruction& instruction);

}  // namespace emulator::ptx
