"""What nvcc makes of the CUDA kernels: registers, spills, shared memory, instructions a tile, share of peak.

    python -m tools.kernel_table            # every kernel, for the usual GPUs; rewrites docs/kernel_table.md
    python -m tools.kernel_table --json now.json --keep build/cubins 87

`toolkit` compiles and disassembles, `sass` finds the loop that does the work and counts what it issues, `shared`
asks the sources how much shared memory a launch takes, `model` makes a share of peak of it, `table` writes it down.
"""
