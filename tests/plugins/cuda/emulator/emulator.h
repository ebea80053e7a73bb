// Runs CUDA kernels on a CPU: one block at a time, every thread of it a fiber, switched at each warp-wide or
// block-wide operation; and streams, whose work waits to be needed.
//
// What it catches: wrong indexing, wrong fragment layouts (mma and ldmatrix distribute their operands over
// lanes exactly as the PTX manual says), a missing cp.async wait (a copy lands at random either at once or as
// late as its wait allows; memory starts as NaN), an access past the end of a buffer (each one ends at an
// unmapped page), a misaligned access, a barrier that not all threads reach, a missing barrier, also within a
// warp, and blocks that race (races.h), what depends on an order of blocks, warps or lanes (all are random),
// a launch beyond the device's limits, a missing wait between two streams or between a stream and the host
// (streams run as late as they can and in a random order), what may not be done during a capture. What it
// cannot: speed, bank conflicts, races between kernels but by the values that come of them, and the order in
// which a device's memory lets stores be seen; but see put_between_blocks.
//
// H2O_EMULATION_EAGER=1 runs all work at once, in the order of the calls, for where somebody reads device
// memory who knows nothing of streams. H2O_EMULATION_SEED=N gives other random orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"

namespace emulator {

// What decides every order that CUDA leaves open.
unsigned random_bits();

// threads.cpp: one kernel, from its first block to its last.

void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& body);

// Launches that a device refuses. A kernel opts in to more shared memory than every kernel may have.
cudaError_t opt_in(const void* kernel, size_t shared_bytes);
cudaError_t check_launch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes);

// What a multiprocessor has: H2O_EMULATION_SHARED_KB, or as much as a Jetson Orin.
size_t shared_bytes_of_a_multiprocessor();

// Dynamic shared memory of the block that is running.
unsigned char* shared_memory();

void block_barrier();
void warp_barrier();  // __syncwarp, which alone orders what lanes of a warp load and store

// Every lane of the warp hands in a slot; the last one to arrive computes for all.
void warp_collective(void* slot, void (*compute)(void* const* lanes));

void copy_async(void* to, const void* from, int bytes, int valid_bytes);
void copy_commit();
void copy_wait(int groups_left);
void land_copies();  // as a thread ends

// What blocks of a launch tell each other. What a thread puts reaches memory at its next fence, or when the
// launch ends; what it takes is garbage between its block's being counted and its own next fence. A block
// that is counted before all its threads have fenced is an error.
void put_between_blocks(void* to, const void* from, size_t bytes);
void take_between_blocks(void* to, const void* from, size_t bytes);
void fence_between_blocks();
unsigned count_arrival(unsigned* count, unsigned all);

// Warp functions of some lanes only are not emulated, and the kernels have none.
void check_mask(unsigned lanes);

// An access of so many bytes, a power of two, is an error elsewhere.
void check_alignment(const void* pointer, size_t bytes);

// streams.cpp: when work runs.

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// For calls that a capture does not allow: while this thread captures, an error, and the capture is lost.
cudaError_t refuse_during_capture();

}  // namespace emulator
