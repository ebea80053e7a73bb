"""Checks prompts of token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.errors import ContextOverflowError, InputError, UnknownTokenError


def checked_ids(ids: ArrayLike, vocab_size: int, context: int) -> NDArray[np.int64]:
    """A prompt as int64 [N], 1 ≤ N ≤ context. Raises InputError, ContextOverflowError, UnknownTokenError."""
    tokens = np.asarray(ids)
    integers = np.issubdtype(tokens.dtype, np.integer)
    if not integers:  # NumPy makes floats of integers that it has no dtype for
        tokens = np.asarray(ids, object)
        integers = all(type(token) is int for token in tokens.flat)
    if tokens.ndim != 1 or not integers:
        raise InputError(f"token ids must be a flat list of integers, but have shape {list(tokens.shape)}")
    if not tokens.size:
        raise InputError("the prompt is empty: give at least one token")
    if len(tokens) > context:
        raise ContextOverflowError(len(tokens), context)
    unknown = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(unknown):
        position = int(unknown[0])
        raise UnknownTokenError(int(tokens[position]), vocab_size, position)
    return np.ascontiguousarray(tokens, np.int64)
