"""The contract between the layer loop and whatever executes dense graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from h2o_runtime.devices import Tensor

Tensors = Mapping[str, Tensor]


class Backend(Protocol):
    """Executes the graphs of one bundle that hold weights.

    most_rows   rows that one call takes at most
    recordable  whether its calls can be recorded into a CUDA graph, after each has run once
    """

    name: str
    most_rows: int
    recordable: bool

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load every one, or those named in `only`.

        Raises BackendError when its library is not installed, BundleError for bad files.
        """

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        """Run one graph. All arrays are C-contiguous and the caller's; results are written in place.

        The free dimension n is read off the arrays. An output array may be any slice of a larger one, so a
        layer's k and v go straight into the cache.
        """

    def bound(self, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        """`infer` for the one row of a decode step, always on these arrays: all names are looked up now.

        Where the backend is `recordable`, the call that is returned can be recorded.
        """

    def deactivate(self) -> None:
        """Give back sessions and memory."""
