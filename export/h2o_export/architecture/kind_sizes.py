"""What `config.json` says of the layers of one kind alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class KindSizes:
    """Sizes of one layer kind, of families that have such layers. The defaults are those of grouped queries."""

    def heads(self, raw: dict[str, Any]) -> tuple[int, int, int] | None:
        """Query heads, heads of keys and values, and the size of a head's query; None: as grouped queries have
        them. Raises CheckpointError.
        """
        return None

    @property
    def rotated_size(self) -> int | None:
        """Elements of a head that RoPE rotates; None: as the family says."""
        return None

    def module_rows(self, module: str) -> int | None:
        """Output size of one of the kind's projections, by its name in a layer; None: it is not of this kind."""
        return None

    def file_order(self, module: str) -> Tensor | None:
        """Where a fused module with the rows of one key head after the other's has each row, int64 [rows].

        None: it is not of this kind.
        """
        return None
