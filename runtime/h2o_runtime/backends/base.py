"""The contract between the layer loop and whatever executes dense graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.model import AttentionShape

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class StepTensors:
    """What a step reads and writes, always in the same memory.

    token, position, length  int64 [1]; length is that of the caches with the step's row
    caches                   of every layer, without pages; its row is appended
    logits                   float32 [1, vocab]
    shapes                   of attention, in every layer
    """

    token: Tensor
    position: Tensor
    length: Tensor
    caches: Sequence[KV]
    logits: Tensor
    shapes: Sequence[AttentionShape]

    @property
    def inputs(self) -> dict[str, Tensor]:
        caches = {
            f"{i}/cache/{name}": tensor
            for i, kv in enumerate(self.caches)
            for name, tensor in kv.tensors.items()
        }
        return {"tokens": self.token, "positions": self.position, "length": self.length, **caches}


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

    def whole_step(self, tensors: StepTensors) -> Callable[[], None] | None:
        """A decode step through all layers, attention included, as one call that is always on these arrays.

        None: it can only run its graphs one by one.
        """
        return None

    def deactivate(self) -> None:
        """Give back sessions and memory."""
