"""Products with 4-bit weights on the GPU, compared with torch's on the same matrices in float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bench.gpu_check.library import Library

SHAPES = (
    (2048, 512),
    (2048, 2048),
    (2048, 8192),
    (8192, 2048),
)  # inputs and outputs, of Llama-3.2-1B's layers
CACHE = 128 << 20  # bytes, more than any cache holds: weights must come from memory


def times(library: Library, n: int, inputs: int, outputs: int) -> list[Callable[[], None]]:
    """The products to time: ours, then torch's, each over enough matrices to fill `CACHE`."""
    size = inputs * outputs // 2
    count = -(-CACHE // size)
    x = torch.randn(n, inputs, dtype=torch.float16)
    y = torch.empty(n, outputs, dtype=torch.float16)
    words = torch.randint(-(2**31), 2**31, (count, size // 4), dtype=torch.int32)
    scales = torch.randn(count, inputs // 32, outputs, dtype=torch.float16) * 0.01
    dense = torch.randn(-(-count // 4), inputs, outputs, dtype=torch.float16)

    def ours() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for matrix, of_blocks in zip(words, scales, strict=True):
            library.block_product(stream, 1, n, inputs, outputs, x, matrix, of_blocks, y)

    def theirs() -> None:
        for matrix in dense:
            torch.matmul(x, matrix, out=y)

    return [ours, theirs]


def row(
    library: Library, n: int, inputs: int, outputs: int, milliseconds: Callable[..., float]
) -> dict[str, Any]:
    ours, theirs = times(library, n, inputs, outputs)
    count = -(-CACHE // (inputs * outputs // 2))
    mine, torchs = milliseconds(ours) / count, milliseconds(theirs) / -(-count // 4)
    flop = 2 * n * inputs * outputs
    return {
        "n": n, "inputs": inputs, "outputs": outputs, "ms": mine, "torch_float16_ms": torchs,
        "weights_gb_s": inputs * outputs * 0.5625 / mine / 1e6, "tflop_s": flop / mine / 1e9,
    }  # fmt: skip
