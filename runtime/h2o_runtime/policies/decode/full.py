"""Exact decode: the new token attends to every key that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.policies.decode.base import DecodePolicy, StepCall


@dataclass(frozen=True)
class FullDecode(DecodePolicy[None]):
    name: ClassVar[str] = "full"
    title: ClassVar[str] = "full"
    exact: ClassVar[bool] = True
    latent: ClassVar[bool] = True
    plain: ClassVar[bool] = True
    appends: ClassVar[bool] = True

    def attend(self, call: StepCall, state: None) -> None:
        if call.new is not None:
            call.provider.step_attention(call.q, call.new["k"], call.new.get("v"), call.kv, call.o)
        elif call.kv.seen is None:
            call.provider.cached_attention(call.q, call.kv, call.o)
        else:
            call.provider.scored_attention(call.q, call.kv, call.o)
