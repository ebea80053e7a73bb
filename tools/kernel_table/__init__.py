"""What nvcc makes of the CUDA kernels: registers, spills, shared memory, instructions a tile, share of peak.

    python -m tools.kernel_table            # every kernel, for the usual GPUs; rewrites docs/kernel_table.md
    python -m tools.kernel_table --json now.json --keep build/cubins 87

`toolkit` compiles and disassembles. `sass` finds a kernel's main loop and counts its instructions. `shared`
reads the shared memory of a launch from the sources. `model` computes the share of peak, and `table` writes
the page.
"""
