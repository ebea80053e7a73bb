"""The subquadratic pattern for generated tokens: a step reads a few hundred rows, however long the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.caches.base import Rows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device
from h2o_runtime.kv import KV
from h2o_runtime.model import ModelSpec
from h2o_runtime.policies.decode.base import DecodePolicy, StepCall
from h2o_runtime.policies.subquadratic import Landmarks, Pattern, check_landmarks


@dataclass(frozen=True)
class SubquadraticDecode(DecodePolicy[Landmarks]):
    name: ClassVar[str] = "subquadratic"
    title: ClassVar[str] = "window, strides and landmarks"

    decode_window: int = option(128, "Earlier tokens that a generated token sees.", least=0)
    decode_global_tokens: int = option(
        1, "First tokens of the prompt that every generated token sees.", least=0
    )
    decode_log_stride: bool = option(
        True, "Generated tokens see tokens and landmarks at distances that are powers of two."
    )
    decode_landmarks: bool = option(True, "Generated tokens see means of blocks of keys and values.")
    decode_landmark_block: int = option(64, "Tokens that a landmark of decode is the mean of.", least=0)
    decode_landmark_count_bias: bool = option(False, "Weight a landmark of decode by its number of tokens.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_landmarks(self.decode_landmarks, self.decode_landmark_block, "decode_landmark_block")

    @property
    def pattern(self) -> Pattern:
        block = self.decode_landmark_block if self.decode_landmarks else 0
        return Pattern(
            self.decode_window,
            self.decode_global_tokens,
            self.decode_log_stride,
            block,
            self.decode_landmark_count_bias,
        )

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Landmarks:
        self.pattern.check_context(capacity, "decode_window")
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
