"""AWQ (Lin et al., 2023) as AutoAWQ writes it, version "gemm"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from h2o_export.checkpoints.quantized.grouped import Grouped, Integers, unpack
from h2o_export.checkpoints.quantized.method import Method, Read, as_columns
from h2o_runtime.errors import UnsupportedModelError

BITS = 4
# Bits i of a word hold column (0, 2, 4, 6, 1, 3, 5, 7)[i]; this is the inverse.
_FIELDS = (0, 4, 1, 5, 2, 6, 3, 7)


class AWQ(Method):
    """qweight int32 [K, N / 8], qzeros int32 [G, N / 8], scales [G, N]; groups are consecutive rows."""

    name: ClassVar[str] = "awq"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        version, bits = settings.get("version", "gemm"), settings.get("bits", BITS)
        if str(version).lower() != "gemm" or bits != BITS:
            raise UnsupportedModelError(
                f"AWQ of version {version!r} with {bits} bits is not supported, only version 'gemm' with {BITS}"
            )

    def matrix(self, module: str, names: Mapping[str, Any], read: Read) -> Grouped:
        q = _columns_in_order(read(f"{module}.qweight")).T
        zeros = _columns_in_order(read(f"{module}.qzeros")).T
        return Grouped(
            np.ascontiguousarray(q), np.ascontiguousarray(zeros), as_columns(read(f"{module}.scales"))
        )


def _columns_in_order(words: NDArray[Any]) -> Integers:
    fields = unpack(words, BITS)
    return fields.reshape(len(fields), -1, len(_FIELDS))[..., _FIELDS].reshape(fields.shape)
