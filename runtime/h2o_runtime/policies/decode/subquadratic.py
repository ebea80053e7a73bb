"""The subquadratic pattern for generated tokens: a step reads a few hundred rows, however long the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.cache import Rows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode.policy import DecodePolicy, StepCall
from h2o_runtime.policies.subquadratic import Landmarks, Pattern


@dataclass(frozen=True)
class SubquadraticDecode(DecodePolicy[Landmarks]):
    name: ClassVar[str] = "subquadratic"
    title: ClassVar[str] = "window, strides and landmarks"
    only_on_cpu: ClassVar[str] = "`decode=subquadratic` has kernels for CPUs only"

    window: int = option(128, "Earlier tokens that a generated token sees.", least=0)
    global_tokens: int = option(1, "First tokens of the prompt that every generated token sees.", least=0)
    log_stride: bool = option(True, "See tokens and landmarks at distances that are powers of two.")
    block: int = option(
        64,
        "Tokens of a block; generated tokens also see means of blocks of keys and values, the landmarks. 0: none.",
        least=0,
    )
    count_bias: bool = option(False, "Weight a landmark by its number of tokens.", needs="block")

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.window, self.global_tokens, self.log_stride, self.block, self.count_bias)

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Landmarks:
        self.pattern.check_context(capacity)
        return Landmarks(self.pattern, model, model.layers, capacity, device)

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        return Landmarks.nbytes(self.pattern, model, model.layers, context)

    def step_bytes(self, model: ModelSpec, context: int) -> int:
        """A landmark counts as a row."""
        return super().step_bytes(model, context) // context * int(self.pattern.visible(context)[-1])

    def observe(self, layer: int, kv: KV, rows: Rows, provider: AttentionProvider, state: Landmarks) -> None:
        """A step's row joins its block. A prompt may begin inside a block: the mean of that block is computed
        again.
        """
        block = self.pattern.block or 1
        start = rows.start // block * block if rows.at is None else rows.at
        state.update(provider, layer, kv, start)

    def attend(self, call: StepCall, state: Landmarks) -> None:
        self.pattern.attend(call.provider, call.q, call.kv, state, call.layer, call.o)
