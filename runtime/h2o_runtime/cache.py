"""The key/value cache of one request, and what is known of the tokens in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.devices import Device, Tensor
from h2o_runtime.manifest import ModelSpec

IntArray = NDArray[np.int64]


class KVCache:
    """Keys and values of every layer, token-major, with the token ids they belong to.

    keys[layer], values[layer]  [cap, Hkv, d] in the model's dtype, on the device
    tokens                      int64 [cap], of which the first `length` are valid
    generated                   bool [cap], true where decode put the token, not a prompt

    Memory is reserved for the whole capacity.
    """

    def __init__(self, model: ModelSpec, capacity: int, device: Device) -> None:
        shape = (capacity, model.kv_heads, model.head_size)
        dtype = np.dtype(model.dtype)
        self.capacity = capacity
        self.keys: list[Tensor] = [device.empty(shape, dtype) for _ in range(model.layers)]
        self.values: list[Tensor] = [device.empty(shape, dtype) for _ in range(model.layers)]
        self.tokens: IntArray = np.zeros(capacity, np.int64)
        self.generated: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.length = 0

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on."""
        self.length = min(self.length, length)

    def append(self, tokens: IntArray, generated: bool) -> None:
        """Record tokens whose keys and values every layer has written."""
        end = self.length + len(tokens)
        self.tokens[self.length : end] = tokens
        self.generated[self.length : end] = generated
        self.length = end

    def shared_prefix(self, tokens: IntArray) -> int:
        """How many of `tokens`, from the first on, the cache already holds."""
        limit = min(self.length, len(tokens))
        different = np.flatnonzero(self.tokens[:limit] != tokens[:limit])
        return int(different[0]) if len(different) else limit

    @property
    def nbytes(self) -> int:
        """Reserved bytes of keys and values."""
        return sum(array.nbytes for array in (*self.keys, *self.values))
