"""The gated delta rule (Yang et al., 2024, "Gated Delta Networks"): a layer with a state in place of keys.

A short convolution, gates and norms are in its dense graphs. Between them each token changes a matrix of every
head, and reads it. Policies are for the other layers alone (`ModelSpec.under_policies`); a state is always exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV, Recurrent
from h2o_runtime.layer_spec import LayerSpec
from h2o_runtime.layers.base import LayerKind, LayerResources, LoadedLayers
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import GATED_DELTA
from h2o_runtime.policies.decode import DecodePolicy, StepCall
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy


@dataclass(frozen=True)
class GatedDelta(LayerKind):
    """`LayerSpec.state` has the convolution's sizes; the others are those of the operator."""

    name: ClassVar[str] = "gated-delta"
    title: ClassVar[str] = "the gated delta rule"

    def load(self, resources: LayerResources) -> DeltaLayers:
        return DeltaLayers(resources)

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        """To what the convolution reads, to the gate, and to two numbers a head; and those of the state."""
        assert spec.state is not None
        rows = spec.state.channels + spec.gate_size + 2 * spec.query_heads
        return model.hidden_size * rows + 3 * spec.query_heads * spec.head_size * spec.value_size


class DeltaLayers(LoadedLayers):
    in_step_graph = False
    one_row_because = "the state of a layer cannot go back behind a token that does not come"

    def __init__(self, resources: LayerResources) -> None:
        super().__init__(resources)
        self._device = resources.device

    def attend(self, policy: PrefillPolicy[Any], call: LayerCall, state: Any) -> None:
        n, kv = len(call.q), _with_state(call.kv)
        call.flow.needs(n)
        with call.timer.measure(policy.phases[0]):
            begin = 0
            for end in sorted({*kv.saved, n}):
                pass_state(call.provider, call.q, kv, call.o, slice(begin, end))
                if end in kv.saved:
                    self._device.copy(kv.state, kv.saved[end])
                begin = end
        call.checkpoint(n)
        call.flow.finished(n)

    def decoding(self, policy: DecodePolicy[Any]) -> DecodePolicy[Any]:
        return DeltaStep()


@dataclass(frozen=True)
class DeltaStep(DecodePolicy[None]):
    name: ClassVar[str] = "state"
    title: ClassVar[str] = "state"
    exact: ClassVar[bool] = True

    def attend(self, call: StepCall, state: None) -> None:
        pass_state(call.provider, call.q, _with_state(call.kv), call.o, slice(0, 1))


def pass_state(provider: AttentionProvider, q: Tensor, kv: Recurrent, o: Tensor, rows: slice) -> None:
    """Bring the state of `kv` behind some of its rows, whose queries and outputs are those of q [n, Hq, d] and o
    [n, Hq, dv].
    """
    new = {"q": q[rows], "k": kv.k[rows], "v": kv.v[rows], "decay": kv.decay[rows], "beta": kv.beta[rows]}
    provider.run(GATED_DELTA, **new, state=kv.state, o=o[rows])


def _with_state(kv: KV) -> Recurrent:
    assert isinstance(kv, Recurrent), "the layer has a state"
    return kv
