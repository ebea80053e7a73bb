"""Latent attention on the GPU: a token behind latents, and a prompt that was expanded from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from bench.gpu_check.library import Library


def cached(
    library: Library, n: int, rows: int, heads: int, kv_heads: int, d: int, dv: int
) -> Callable[[], None]:
    """The last `rows` of n tokens attend to all. One key/value head has its values in its keys."""

    def normal(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float16)

    shape = library.Shape(heads, kv_heads, kv_heads, d, d**-0.5, 1, dv)
    q, k, o = normal(rows, heads, d), normal(n, kv_heads, d), normal(rows, heads, dv)
    v = k if kv_heads == 1 else normal(n, kv_heads, dv)
    length = torch.tensor([n], dtype=torch.int64)
    room = torch.empty(library.cached_attention_workspace(shape, rows, n), dtype=torch.uint8)
    kv = library.KV(k=k.data_ptr(), v=v.data_ptr(), rows=n, dtype=1)  # float16

    def run(keep: tuple[Any, ...] = (k, v)) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        library.cached_attention(stream, shape, rows, q, kv, length, o, room, room.numel())

    return run
