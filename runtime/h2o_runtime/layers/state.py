"""Layers with a state in place of rows: what the state is made of, and how a prompt and a step pass it on.

Sessions, slots and saved caches carry any state by its layout. A kind declares the layout, and its layers compute
`advance`. Policies are for the other layers alone (`ModelSpec.under_policies`): a state is always exact.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV, StateView
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers.kind import ArrayShape, LayerResources, LoadedLayers, StateLayout, Tail
from h2o_runtime.operator_spec import Operator
from h2o_runtime.policies.decode import DecodePolicy, StepCall
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy

LANES = 4  # of float32 in a register of every processor


@dataclass(frozen=True)
class StateCall:
    """n tokens on a state: its `arrays`, q [n, Hq, d] and `new` as the dense graph gave them, and o [n, Hq, dv]."""

    provider: AttentionProvider
    arrays: Mapping[str, Tensor]
    q: Tensor
    new: Mapping[str, Tensor]
    o: Tensor


class StateLayers(LoadedLayers):
    """A kind with a state overrides `advance`."""

    in_step_graph = False

    def __init__(self, resources: LayerResources) -> None:
        super().__init__(resources)
        self._device = resources.device

    @abstractmethod
    def advance(self, call: StateCall) -> None:
        """Bring the arrays behind these tokens, and fill o."""

    def attend(self, policy: PrefillPolicy[Any], call: LayerCall, state: Any) -> None:
        n, view = len(call.q), _view(call.kv)
        call.flow.needs(n)
        with call.timer.measure(policy.phases[0]):
            self._pass_all(call.provider, call.q, view, call.o)
        call.checkpoint(n)
        call.flow.finished(n)

    def decoding(self, policy: DecodePolicy[Any]) -> DecodePolicy[Any]:
        return StateStep(self)

    def attend_rows(self, policy: DecodePolicy[Any], call: StepCall, state: Any) -> None:
        self._pass_all(call.provider, call.q, _view(call.kv), call.o)

    def _pass_all(self, provider: AttentionProvider, q: Tensor, view: StateView, o: Tensor) -> None:
        """Over all rows, with copies of the state where they are to be saved."""
        begin = 0
        for end in sorted({*view.saved, len(q)}):
            self._pass(provider, q, view, o, slice(begin, end))
            for name, copy in view.saved.get(end, {}).items():
                self._device.copy(view.arrays[name], copy)
            begin = end

    def step_of(self, call: StepCall) -> None:
        self._pass(call.provider, call.q, _view(call.kv), call.o, slice(0, 1))

    def _pass(self, provider: AttentionProvider, q: Tensor, view: StateView, o: Tensor, rows: slice) -> None:
        new = {name: tensor[rows] for name, tensor in view.new.items()}
        self.advance(StateCall(provider, view.arrays, q[rows], new, o[rows]))


class GatedHeads(StateLayers):
    """Layers whose dense graphs compute gates, one number for each head; `operator` advances their state.

    ONNX Runtime's Softplus takes LANES numbers at a time, and those that are left with other instructions. So a
    row's bits depend on its place in a step, unless every row fills whole vectors.
    """

    def __init__(self, resources: LayerResources, operator: Operator) -> None:
        super().__init__(resources)
        self._operator = operator
        counts = {spec.query_heads for spec in resources.model.each_layer if spec.state is not None}
        if odd := [count for count in counts if count % LANES]:
            self.one_row_because = f"gates of {odd[0]} heads do not fill vectors of {LANES}"

    def advance(self, call: StateCall) -> None:
        queries, *others = self._operator.input_names
        given = {name: call.new[name] for name in others if name in call.new} | {queries: call.q}
        call.provider.run(self._operator, **given, state=call.arrays["state"], o=call.o)


def gated_state(spec: LayerSpec, dtype: np.dtype[Any], new: Mapping[str, ArrayShape]) -> StateLayout:
    """A matrix for each head, and the last inputs of a short convolution: of a layer of `GatedHeads`."""
    channels, tail = spec.sizes_of_state("channels", "tail")
    state = ArrayShape((spec.query_heads, spec.head_size, spec.value_size), np.dtype(np.float32))
    mixed = ArrayShape((channels,), dtype)
    return StateLayout({**new, "mixed": mixed}, {"state": state}, {"tail": Tail("mixed", tail)})


@dataclass(frozen=True)
class StateStep(DecodePolicy[None]):
    """A token in layers with a state."""

    name: ClassVar[str] = "state"
    title: ClassVar[str] = "state"
    exact: ClassVar[bool] = True

    layers: StateLayers = field(repr=False)

    def attend(self, call: StepCall, state: None) -> None:
        self.layers.step_of(call)


def _view(kv: KV) -> StateView:
    assert isinstance(kv, StateView), "the layer has a state"
    return kv
