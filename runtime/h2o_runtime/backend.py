"""The interface between the layer loop and the backends that execute dense graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from h2o_runtime.devices import Tensor
from h2o_runtime.layer_spec import AttentionShape
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import DensePrecision

Tensors = Mapping[str, Tensor]

HIDDEN = "hidden"  # the graph of `Backend.load_hidden`, and its output


@dataclass(frozen=True)
class StepTensors:
    """The inputs and outputs of a step of R rows, always in the same memory; its first R rows are used.

    tokens, positions  int64 [most]
    lengths            int64 [most]: of each row's cache, including that row
    caches             uint8 [most, layers, 64]: entries of `h2o_runtime.kv_entry`; rows are appended there
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
    """Executes the dense graphs of one bundle.

    most_rows   the most rows of one call
    step_rows   the most rows of a `bound` call
    native_products  whether our own products multiply in its graphs, inside mixtures of experts too
    dense_precision  of the factors of products with float weights; None: the backend decides
    model       the bundle's, with the dtype of its graphs' inputs and results here
    """

    name: str
    most_rows: int
    step_rows: int
    native_products: bool
    dense_precision: DensePrecision | None
    model: ModelSpec

    @property
    def recordable(self) -> bool:
        """Whether its calls can be recorded into a CUDA graph after a first run. Known after `activate`."""

    def activate(self, only: Sequence[str] | None = None) -> None:
        """Load all dense graphs, or those named in `only`. Raises BackendError if the backend's library is
        not installed, BundleError for bad files.
        """

    def infer(self, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        """Run one graph. All arrays are C-contiguous and the caller's; results are written in place.

        The arrays determine the free dimension n. An output array may be any slice of a larger one, so a
        layer's k and v are written directly into the cache.
        """

    def bound(self, graph: str, inputs: Tensors, outputs: Tensors) -> Callable[[], None]:
        """`infer` for the rows of a decode step, with these arrays in every call: names are resolved once, here.

        If the backend is `recordable`, the returned call can be recorded.
        """

    def load_hidden(self) -> None:
        """Load the graph HIDDEN for `infer`: the last dense graph without the LM head, with the same inputs →
        `hidden` [n, D] after the final norm, of the model's dtype.

        May be called again, and in another thread than `infer`. Raises ConfigError where there is no such graph.
        """

    def load_draft(self) -> None:
        """Load the graphs of the draft layer for `infer`; its head shares the model's packed weights, and gives
        logits of the first `drafted_tokens` alone.

        Only with `native_products`, and if the model has such a layer.
        """

    def whole_step(self, tensors: StepTensors) -> Callable[[int], None] | None:
        """A decode step through all layers, including attention, as one call with the same arrays each time;
        its argument is the number of rows.

        A row's logits are the same bits whatever other rows are in the step. None: the backend can only run
        its graphs one by one.
        """
        return None

    def deactivate(self) -> None:
        """Free sessions and memory."""
