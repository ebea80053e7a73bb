"""The contract between the layer loop and whatever executes dense graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from h2o_runtime.devices import Tensor
from h2o_runtime.model import AttentionShape

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class StepTensors:
    """What a step of R rows reads and writes, always in the same memory, whose first R rows are used.

    tokens, positions  int64 [most]
    lengths            int64 [most]: of each row's cache, with that row
    caches             uint8 [most, layers, 64]: entries of `h2o_runtime.ort.kv_entry`; rows are appended there
    logits             float32 [most, vocab]
    shapes             of attention, in every layer
    """

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    caches: Tensor
    logits: Tensor
    shapes: Sequence[AttentionShape]

    def inputs(self, rows: int) -> dict[str, Tensor]:
        tensors = {
            "tokens": self.tokens,
            "positions": self.positions,
            "lengths": self.lengths,
            "caches": self.caches,
        }
        return {name: tensor[:rows] for name, tensor in tensors.items()}


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

    def whole_step(self, tensors: StepTensors) -> Callable[[int], None] | None:
        """A decode step through all layers, attention included, as one call that is always on these arrays; it is
        given the number of rows. A row's logits are bit for bit the same whatever rows are beside it.

        None: it can only run its graphs one by one.
        """
        return None

    def deactivate(self) -> None:
        """Give back sessions and memory."""
