// Which lanes execute, and where their addresses lie.
//
// Lanes that stand at the lowest place execute first, so that those that parted meet again. Sometimes a
// random part of a warp is held back until the others can do no more without it: lanes drift apart as far as
// CUDA lets them.

#include "warp.h"

#include <algorithm>
#include <utility>

#include "../cuda_runtime.h"
#include "../emulator.h"
#include "../races.h"

namespace emulator::ptx {

Warp::Warp(const Kernel& kernel, const std::vector<unsigned char>& parameters, unsigned first_thread)
    : kernel_(kernel),
      parameters_(parameters),
      first_thread_(first_thread),
      registers_(kernel.registers.size()),
      local_(kernel.local_bytes * kLanes) {
    for (size_t n = 0; n < registers_.size(); ++n) registers_[n].fill(kernel.registers[n]);
}

void Warp::begin_block() {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        const unsigned values[] = {first_thread_ + lane, 0,          0,          blockDim.x,
                                   blockDim.y,           blockDim.z, blockIdx.x, blockIdx.y,
                                   blockIdx.z,           gridDim.x,  gridDim.y,  gridDim.z};
        for (size_t n = 0; n < kSpecials; ++n) registers_[n][lane] = values[n];
    }
    std::fill(local_.begin(), local_.end(), static_cast<unsigned char>(0xff));
    ready_ = kAllLanes;
    held_back_ = waiting_ = at_barrier_ = done_ = 0;
    places_.fill(0);
    met_ = true;
}

Warp::State Warp::state() const {
    if ((ready_ | held_back_) != 0 || waiting_ == kAllLanes) return State::kReady;
    if (waiting_ != 0) fail("some lanes of a warp never reached a warp-wide operation");
    return at_barrier_ != 0 ? State::kBarrier : State::kDone;
}

void Warp::run() {
    do {
        choose_lanes();
        if (group_ == 0) return;
        execute();
    } while (!met_ || random_bits() % 2 == 0);
}

// The ready ones with the lowest place, up to the lowest place of others.
void Warp::choose_lanes() {
    group_ = 0;
    if (ready_ == 0) ready_ = std::exchange(held_back_, 0);
    if (ready_ == 0 && waiting_ == kAllLanes) {
        for (const uint32_t place : places_)
            if (place != places_[0]) fail("lanes of a warp meet in different operations");
        ready_ = std::exchange(waiting_, 0);
    }
    if (ready_ == 0) return;
    if (std::exchange(met_, false)) {
        order_ = random_bits() % kLanes;
        if (random_bits() % 4 == 0) held_back_ = ready_ & random_bits();
        if (held_back_ == ready_) held_back_ = 0;
        ready_ &= ~held_back_;
    }
    next_ = stop_ = static_cast<uint32_t>(kernel_.code.size());
    for (Lanes left = ready_; left != 0; left &= left - 1) {
        const auto lane = static_cast<unsigned>(__builtin_ctz(left));
        if (places_[lane] < next_) {
            stop_ = next_;
            next_ = places_[lane];
            group_ = 0;
        } else if (places_[lane] != next_) {
            stop_ = std::min(stop_, places_[lane]);
        }
        if (places_[lane] == next_) group_ |= 1u << lane;
    }
}

void Warp::execute() {
    const Instruction* const code = kernel_.code.data();
    while (group_ != 0 && next_ < stop_ && !met_) {
        const Instruction& instruction = code[next_++];
        active_ = group_;
        if (instruction.is_guarded) {
            const Lanes holds = lanes_with(registers_[instruction.guard]);
            active_ &= instruction.is_guard_negated ? ~holds : holds;
            if (active_ == 0) continue;
        }
        instruction.execute(*this, instruction);
    }
    leave(group_, next_);
    if (next_ >= kernel_.code.size()) {
        active_ = group_;
        finish();
    }
}

// The bits of a predicate: eight lanes' bytes are brought together by one product.
Lanes Warp::lanes_with(const Register& predicate) const {
    unsigned char bytes[kLanes];
    for (unsigned lane = 0; lane < kLanes; ++lane) bytes[lane] = predicate[lane] & 1;
    Lanes lanes = 0;
    for (unsigned first = 0; first < kLanes; first += 8) {
        uint64_t eight;
        std::memcpy(&eight, bytes + first, 8);
        lanes |= static_cast<Lanes>(eight * 0x0102040810204080u >> 56) << first;
    }
    return lanes;
}

// `lanes` of the group stand at a place of their own from here on.
void Warp::leave(Lanes lanes, uint32_t place) {
    for (Lanes left = lanes; left != 0; left &= left - 1)
        places_[static_cast<unsigned>(__builtin_ctz(left))] = place;
}

void Warp::jump(uint32_t target) {
    if (active_ == group_) {
        next_ = target;
        return;
    }
    leave(active_, target);
    leave(group_ & ~active_, next_);
    group_ = 0;
}

void Warp::finish() {
    each([](unsigned) { land_copies(); });
    done_ |= active_;
    ready_ &= ~active_;
    group_ &= ~active_;
}

void Warp::wait_for_block() {
    leave(active_, next_);
    at_barrier_ |= active_;
    ready_ &= ~active_;
    group_ &= ~active_;
}

void Warp::open_barrier() {
    ready_ |= std::exchange(at_barrier_, 0);
    met_ = true;
}

bool Warp::all_are_here() {
    if (active_ == kAllLanes) {
        met_ = random_bits() % 4 == 0;
        return true;
    }
    leave(active_, next_ - 1);
    waiting_ |= active_;
    ready_ &= ~active_;
    group_ &= ~active_;
    return false;
}

void Warp::be(unsigned lane) const {
    threadIdx.x = first_thread_ + lane;
}

unsigned char* Warp::locate(const Instruction& instruction, size_t index, unsigned lane, Space space,
                            size_t bytes) {
    uint64_t address = source(instruction, index)[lane] + static_cast<uint64_t>(instruction.displacement);
    if (space == Space::kShared) address &= 0xffffffffu;
    if ((address & (bytes - 1)) != 0) fail("an access to a misaligned address");
    const auto within = [&](unsigned char* begin, size_t size) {
        if (address > size || bytes > size - address) fail("an access outside of its address space");
        return begin + address;
    };
    switch (space) {
        case Space::kParam:
            return within(const_cast<unsigned char*>(parameters_.data()), kernel_.parameter_bytes);
        case Space::kLocal:
            return within(local_.data() + lane * kernel_.local_bytes, kernel_.local_bytes);
        case Space::kShared:
            return within(shared_memory(), shared_memory_bytes());
        case Space::kGeneric:
        case Space::kGlobal:
            break;
    }
    auto* const at = reinterpret_cast<unsigned char*>(address);
    if (!is_device_memory_of_launch(at, bytes)) fail("an access outside of device memory");
    return at;
}

}  // namespace emulator::ptx
