"""A layer kind: the parts of a decoder layer from its norm to the cache, and from attention back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from h2o_export.architecture.config import ModelConfig
from h2o_runtime.bundles.manifest import FreeSize, FreeSizes, GraphSpec, TensorSpec
from h2o_runtime.layer_spec import LayerSpec


@dataclass(frozen=True)
class SmallGraph:
    """One of a kind's small graphs. `step`: whether decode runs it; `kind`: as in `GraphSpec`."""

    name: str
    module: type[nn.Module]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    step: bool
    kind: Literal["latent", "layer"] = "layer"

    def spec(self, layer: int, weights: tuple[str, ...] = (), draft: bool = False) -> GraphSpec:
        """draft: whether the layer is the one that drafts."""
        name = f"draft_{self.name}" if draft else f"{self.name}_{layer:02d}"
        free = FreeSizes(sizes=(FreeSize(name="n", counts="rows"),), step=self.step)
        return GraphSpec(
            name=name,
            file=f"onnx/{name}.onnx",
            kind="draft" if draft else self.kind,
            inputs=self.inputs,
            outputs=self.outputs,
            weights=weights,
            free=free,
        )


class Tensors(Protocol):
    """What a kind needs of a checkpoint."""

    @property
    def config(self) -> ModelConfig: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor: ...


class LayerKind(ABC):
    """One kind of attention, for dense graphs and their users. n tokens, D hidden size."""

    name: ClassVar[str]  # its name in families
    title: ClassVar[str]
    # Name endings of matrices that stay floats if others become integers.
    float_matrices: ClassVar[tuple[str, ...]] = ()
    # Whether 8-bit weights can be scaled for activations.
    scalable: ClassVar[bool] = True

    @abstractmethod
    def spec(self, config: ModelConfig) -> LayerSpec:
        """The manifest's description of such a layer, from which operators, caches and buffers are made."""

    @abstractmethod
    def projection(self, config: ModelConfig) -> nn.Module:
        """x [n, D], cos and sin float32 [n, rotary_size / 2], and the tensors of `given` → those of `interface`, in
        that order."""

    @abstractmethod
    def output(self, config: ModelConfig) -> nn.Module:
        """Attention output, one row per token, and the gate, if any → [n, D]. A dense graph calls it `o_proj`."""

    def interface(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        """Tensors from the dense graph to attention and cache; last, the gate for the next graph, if any."""
        spec = self.spec(config)
        stored = () if spec.source is not None else ("k",) if spec.shared else ("k", "v")
        q = rows("q", (spec.query_heads, spec.query_size), dtype)
        tensors = [q, *(rows(name, (spec.kv_heads, spec.head_size), dtype) for name in stored)]
        return tuple(tensors + [rows("gate_out", (spec.gate_size,), dtype)] * bool(spec.gate_size))

    def given(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        """What a dense graph reads of the tokens before: zeros where there are none."""
        return ()

    def attended(self, config: ModelConfig, dtype: str) -> TensorSpec:
        """The tensor from attention to the dense graph."""
        spec = self.spec(config)
        return rows("attention", (spec.query_heads, spec.out_size), dtype)

    def gate(self, config: ModelConfig, dtype: str) -> tuple[TensorSpec, ...]:
        """What it takes from the dense graph before, beside the residual stream."""
        size = self.spec(config).gate_size
        return (rows("gate", (size,), dtype),) if size else ()

    def checkpoint_name(self, parameter: str) -> str:
        """The name in a layer's tensors of a parameter of `projection`, or of `output` (prefixed with
        o_proj).
        """
        return f"self_attn.{parameter}"

    def manifest_fields(self, config: ModelConfig) -> dict[str, Any]:
        """Fields of `ModelSpec` for this kind."""
        return {}

    def learned(self, checkpoint: Tensors, layer: int) -> dict[str, Any]:
        """Fields of a layer's `LayerSpec` that its checkpoint decides. Raises CheckpointError."""
        return {}

    # Small graphs beside the dense ones: none, unless a kind has some

    def small_graphs(self, config: ModelConfig, dtype: str) -> tuple[SmallGraph, ...]:
        """In the order of comparisons: each may use outputs of those before it."""
        return ()

    def small_tensors(self, config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
        """Tensors of a checkpoint that a layer's small graphs or `LayerSpec` hold, with their shapes."""
        return {}

    def small_parameters(self, checkpoint: Tensors, layer: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """For a layer's small graphs, by name. Raises CheckpointError."""
        return {}

    def small_inputs(
        self,
        graph: str,
        known: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        spec: LayerSpec,
    ) -> Mapping[str, NDArray[Any]]:
        """A small graph's inputs for comparisons: `known` are tensors of the dense graph, `made` outputs of
        earlier small graphs.
        """
        raise AssertionError(f"this kind has no graph {graph}")

    @abstractmethod
    def reference(self, given: Mapping[str, NDArray[Any]], spec: LayerSpec) -> NDArray[np.float64]:
        """Causal attention in float64, for comparisons: tensors of `interface` → that of `attended`.

        Outputs of small graphs replace tensors with their name.
        """


def rows(name: str, row: tuple[int, ...], dtype: str) -> TensorSpec:
    """A tensor [n, *row]."""
    return TensorSpec(name=name, dtype=dtype, shape=("n", *row))  # type: ignore[arg-type]


def causal_attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Sequence[float] = (),
) -> NDArray[np.float64]:
    """q [n, Hq, d], k [n, Hkv, d], v [n, Hkv, dv] → [n, Hq, dv], every row seeing those up to itself, or the last
    `window` of them, by scores that are kept below `softcap`. sinks [Hq], or none, take part and have no value."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    seen = np.tri(len(q), dtype=bool) & ~np.tri(len(q), k=-window if window else -len(q), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks:
        total += np.exp(np.array(sinks)[:, None, None] - top)
    out: NDArray[np.float64] = np.einsum("hij,jhd->ihd", weights / total, v)
    return out
