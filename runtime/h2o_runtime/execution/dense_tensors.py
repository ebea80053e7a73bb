"""Which tensors each dense graph reads and writes."""

from __future__ import annotations

from h2o_runtime.devices import Tensor
from h2o_runtime.layers.activations import Activations
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.schedule import Span

Tensors = dict[str, Tensor]  # by the graph's names


class DenseTensors:
    """Of one model, in the buffers between its layers."""

    def __init__(self, model: ModelSpec, buffers: Activations) -> None:
        self._model, self._buffers = model, buffers
        self._rotations = [buffers.rotations[spec.rotation] for spec in model.each_layer]

    def of_layer(
        self, layer: int, tile: Span, tokens: Tensor, positions: Tensor, written: Tensors, given: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Inputs and outputs of dense graph `layer` on a tile of the buffers.

        tokens, positions  int64 [len(tile)]
        written, given     `LayerStore.target` and `LayerStore.given` of the layer
        """
        b = self._buffers
        cut = slice(tile.start, tile.stop)
        outputs = {"residual_out": b.residual(layer)[cut], "q": b.q[layer][cut], **written}
        if (gate := b.gates[layer]) is not None:
            outputs["gate_out"] = gate[cut]
        if layer == 0:
            outputs |= {name: rows[cut] for table in b.rotations for name, rows in table.items()}
            return {"tokens": tokens, "positions": positions, **given}, outputs
        inputs = {**self.behind(layer - 1, tile, tokens), **given}
        inputs |= {name: rows[cut] for name, rows in self._rotations[layer].items()}
        return inputs, outputs

    def of_head(self, rows: Span, tokens: Tensor) -> tuple[Tensors, Tensors]:
        """Inputs and outputs of the last dense graph on rows of the buffers, which are of these tokens."""
        inputs = self.behind(self._model.layers - 1, rows, tokens)
        outputs = {"logits": self._buffers.logits[: len(rows)]}
        if self._buffers.hidden is not None:
            outputs["hidden"] = self._buffers.hidden[: len(rows)]
        return inputs, outputs

    def behind(self, layer: int, rows: Span, tokens: Tensor) -> Tensors:
        """What the dense graph behind a layer reads of that layer, for rows of these tokens."""
        b, cut = self._buffers, slice(rows.start, rows.stop)
        inputs = {"attention": b.attention[layer][cut], "residual": b.residual(layer)[cut]}
        if (gate := b.gates[layer]) is not None:
            inputs["gate"] = gate[cut]
        if self._model.layer_embedding:
            inputs |= {"tokens": tokens, "embedded": b.embedded[cut]}
        return inputs
