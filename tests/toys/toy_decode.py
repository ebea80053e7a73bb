"""A decode policy in one file: a generated token sees the last rows only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.components.options import option
from h2o_runtime.kv import KV
from h2o_runtime.operators import CACHED_ATTENTION
from h2o_runtime.policies.decode import DecodePolicy, StepCall


@dataclass(frozen=True)
class Recent(DecodePolicy[None]):
    name: ClassVar[str] = "recent"
    title: ClassVar[str] = "recent rows"

    recent: int = option(64, "Rows that a generated token sees, itself among them.", least=1)

    def attend(self, call: StepCall, state: None) -> None:
        start = max(int(call.kv.length) - self.recent, 0)
        kv = KV(call.kv.k[start:], call.kv.v[start:], int(call.kv.length) - start)
        call.provider.run(CACHED_ATTENTION, kv, q=call.q, o=call.o)
