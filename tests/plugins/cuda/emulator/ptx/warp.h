// A warp that executes a kernel: each instruction at once for all lanes that stand at the same place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernel.h"

namespace emulator::ptx {

using Lanes = uint32_t;  // a set of them
constexpr unsigned kLanes = 32;
constexpr Lanes kAllLanes = ~Lanes{0};

// A register of all lanes. Numbers lie in the low bytes.
using Register = std::array<uint64_t, kLanes>;

template <size_t BYTES>
using Bits = std::conditional_t<
    BYTES == 8, uint64_t,
    std::conditional_t<BYTES == 4, uint32_t, std::conditional_t<BYTES == 2, uint16_t, uint8_t>>>;

template <class T>
T from_bits(uint64_t bits) {
    if constexpr (std::is_same_v<T, bool>) {
        return (bits & 1) != 0;
    } else {
        const auto low = static_cast<Bits<sizeof(T)>>(bits);
        T value;
        std::memcpy(&value, &low, sizeof(T));
        return value;
    }
}

template <class T>
uint64_t to_bits(T value) {
    Bits<sizeof(T)> low;
    std::memcpy(&low, &value, sizeof(T));
    return low;
}

class Warp {
  public:
    enum class State { kReady, kBarrier, kDone };

    Warp(const Kernel& kernel, const std::vector<unsigned char>& parameters, unsigned first_thread);

    void begin_block();
    State state() const;
    void run();           // for a while, or until no lane is ready
    void open_barrier();  // the block has met

    // For instructions. `index` is a position among their operands.
    const Register& source(const Instruction& instruction, size_t index) const {
        return registers_[instruction.operands[index]];
    }
    template <class T>
    T get(const Instruction& instruction, size_t index, unsigned lane) const {
        return from_bits<T>(source(instruction, index)[lane]);
    }
    template <class T>
    void set(const Instruction& instruction, size_t index, unsigned lane, T value) {
        registers_[instruction.operands[index]][lane] = to_bits(value);
    }

    // Gives f(lane) to the destination of every active lane. The first loop is one that compilers vectorize.
    template <class F>
    void assign(const Instruction& instruction, F f) {
        Register& destination = registers_[instruction.operands[0]];
        if (active_ == kAllLanes) {
            Register all;
            for (unsigned lane = 0; lane < kLanes; ++lane) all[lane] = to_bits(f(lane));
            destination = all;
        } else {
            for (Lanes left = active_; left != 0; left &= left - 1) {
                const auto lane = static_cast<unsigned>(__builtin_ctz(left));
                destination[lane] = to_bits(f(lane));
            }
        }
    }

    // Calls f(lane) as the thread of each active lane, in an order of chance.
    template <class F>
    void each(F f) {
        for (unsigned n = 0; n < kLanes; ++n) {
            const unsigned lane = n ^ order_;
            if ((active_ >> lane & 1) == 0) continue;
            be(lane);
            f(lane);
        }
    }

    // Where an operand's address lies in this process; an address outside of its space ends the program.
    unsigned char* locate(const Instruction& instruction, size_t index, unsigned lane, Space space,
                          size_t bytes);

    Lanes active() const { return active_; }
    Lanes lanes_with(const Register& predicate) const;
    unsigned first_thread() const { return first_thread_; }

    void jump(uint32_t target);
    void finish();
    void wait_for_block();

    // Whether all lanes stand at the warp-wide operation that runs. If not, those that do wait for the
    // others.
    bool all_are_here();

  private:
    void be(unsigned lane) const;
    void choose_lanes();
    void execute();
    void leave(Lanes lanes, uint32_t place);

    const Kernel& kernel_;
    const std::vector<unsigned char>& parameters_;
    const unsigned first_thread_;
    std::vector<Register> registers_;
    std::vector<unsigned char> local_;  // lane by lane

    // Each lane is in one of these sets.
    Lanes ready_ = 0, held_back_ = 0, waiting_ = 0, at_barrier_ = 0, done_ = 0;
    std::array<uint32_t, kLanes> places_ = {};  // of lanes that do not execute
    Lanes group_ = 0, active_ = 0;              // those that execute; those of them that are not guarded out
    uint32_t next_ = 0, stop_ = 0;              // the group's place, and where it looks for other lanes
    bool met_ = false;                          // all did: time to choose another order
    unsigned order_ = 0;
};

}  // namespace emulator::ptx
