"""GPTQ (Frantar et al., 2022) as AutoGPTQ and GPTQModel write it, with and without act-order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from h2o_export.checkpoints.quantized.grouped import Grouped, runs_or_groups, unpack
from h2o_export.checkpoints.quantized.method import Method, Read, as_columns
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

BITS = (2, 4, 8)  # bit widths that divide a word; 3-bit fields cross word boundaries
# What is added to a stored zero, by the file's format: the first format stored zeros minus one.
_ADDED = {"gptq": 1, "gptq_v2": 0}


class GPTQ(Method):
    """qweight int32 [K * bits / 32, N], qzeros int32 [G, N * bits / 32], scales [G, N], g_idx [K].

    With act-order the columns of a group are scattered; `g_idx` gives each column's group.
    """

    name: ClassVar[str] = "gptq"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        layout, bits = settings.get("checkpoint_format") or "gptq", settings.get("bits")
        if layout not in _ADDED or settings.get("pack_dtype") not in (None, "int32"):
            raise UnsupportedModelError(
                f"GPTQ in the format {layout!r} is not supported; supported are {' and '.join(_ADDED)} in 32-bit "
                "words"
            )
        if bits not in BITS:
            raise UnsupportedModelError(
                f"GPTQ with {bits!r} bits is not supported; supported are {', '.join(map(str, BITS))}"
            )
        self._added = _ADDED[layout]
        self._bits = int(bits)

    def matrix(self, module: str, names: Mapping[str, Any], read: Read) -> Grouped:
        words, scales = read(f"{module}.qweight"), as_columns(read(f"{module}.scales"))
        index = read(f"{module}.g_idx") if f"{module}.g_idx" in names else None
        bits, rest = self._bits, 0
        if index is not None:  # one module may have its own bit width
            bits, rest = divmod(32 * len(words), max(index.size, 1))
        if rest or bits not in BITS:
            raise CheckpointError(
                f"{module}.qweight has {len(words)} rows of words, which {module}.g_idx contradicts; "
                "download the checkpoint again"
            )
        zeros = (unpack(read(f"{module}.qzeros"), bits).T + self._added) & ((1 << bits) - 1)
        groups = None if index is None else runs_or_groups(index, scales.shape[1])
        return Grouped(unpack(words.T, bits), zeros.astype(np.int16), scales, groups)
