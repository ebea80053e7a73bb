// A kernel as nvcc wrote it in PTX, decoded so that a thread of the emulator can execute it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace emulator::ptx {

class Thread;
struct Instruction;
using Execute = void (*)(Thread&, const Instruction&);

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
    bool is_signed = false;
    uint8_t element_bytes = 0, elements = 0;
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
    std::vector<uint64_t> registers;  // as a thread begins: constants, and zeros
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

// One thread that executes a kernel.
class Thread {
  public:
    Thread(const Kernel& kernel, const unsigned char* parameters);

    void run();

    // `index` is a position among the instruction's operands.
    template <class T>
    T get(const Instruction& instruction, size_t index) const {
        T value;
        std::memcpy(&value, &registers_[instruction.operands[index]], sizeof(T));
        return value;
    }
    template <class T>
    void set(const Instruction& instruction, size_t index, T value) {
        uint64_t& whole = registers_[instruction.operands[index]];
        whole = 0;
        std::memcpy(&whole, &value, sizeof(T));
    }

    // Where an operand's address lies in this process; an address outside of its space ends the program.
    unsigned char* locate(const Instruction& instruction, size_t index, size_t bytes, bool& is_device_memory);

    void jump(uint32_t target) { next_ = target; }
    void finish() { next_ = static_cast<uint32_t>(kernel_.code.size()); }
    const Kernel& kernel() const { return kernel_; }

  private:
    const Kernel& kernel_;
    const unsigned char* parameters_;
    std::vector<uint64_t> registers_;
    std::vector<unsigned char> local_;
    uint32_t next_ = 0;
};

}  // namespace emulator::ptx
