// Runs CUDA kernels on a CPU: one block at a time, every thread of it a fiber, switched at each warp-wide
// or block-wide operation.
//
// What it catches: wrong indexing, wrong fragment layouts (mma and ldmatrix distribute their operands over
// lanes exactly as the PTX manual says), a missing __syncthreads or cp.async wait (warps run in a random
// order, and a cp.async copy lands at random either at once or as late as its wait allows; shared memory
// starts as NaN), an access past the end of a buffer (each one ends at an unmapped page), a barrier that
// not all threads reach. What it cannot: speed, bank conflicts, alignment faults, races between blocks,
// and races within one warp between two switches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3;

namespace emulator {

void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// Dynamic shared memory of the block that is running.
unsigned char* shared_memory();

void block_barrier();

// Every lane of the warp hands in a slot; the last one to arrive computes for all.
void warp_collective(void* slot, void (*compute)(void* const* lanes));

void copy_async(void* to, const void* from, int bytes, int valid_bytes);
void copy_commit();
void copy_wait(int groups_left);

// Changes the order in which warps run and copies land.
void seed(unsigned value);

}  // namespace emulator
