"""Exact decode: the new token attends to every cached key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.operators import CACHED_ATTENTION, SCORED_ATTENTION, STEP_ATTENTION
from h2o_runtime.policies.decode.policy import DecodePolicy, StepCall


@dataclass(frozen=True)
class FullDecode(DecodePolicy[None]):
    name: ClassVar[str] = "full"
    title: ClassVar[str] = "full"
    exact: ClassVar[bool] = True
    shared_values: ClassVar[bool] = True
    mixed_rows: ClassVar[bool] = True
    joined_by_sinks: ClassVar[bool] = True
    full_attention_only: ClassVar[bool] = True
    appends: ClassVar[bool] = True

    def attend(self, call: StepCall, state: None) -> None:
        if call.new is not None:
            call.provider.run(
                STEP_ATTENTION, call.kv, q=call.q, k=call.new["k"], v=call.new.get("v"), o=call.o
            )
        elif call.kv.seen is None:
            call.provider.run(CACHED_ATTENTION, call.kv, q=call.q, o=call.o)
        else:
            call.provider.run(SCORED_ATTENTION, call.kv, q=call.q, o=call.o, seen=call.kv.seen)
