"""A prefill policy in one file: blocks see themselves, and of the past every k-th token and the last block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from h2o_runtime.attention import PartialSoftmax
from h2o_runtime.components.options import option
from h2o_runtime.operators import CHUNKED_INTRA_ATTENTION, MEMORY_FUSED_ATTENTION
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.schedule import spans


@dataclass(frozen=True)
class Toy(PrefillPolicy[None]):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "every k-th"
    phases: ClassVar[tuple[str, ...]] = ("blocks",)

    block: int = option(64, "Tokens that see each other, and the block before them.", least=1)
    every: int = option(8, "Of the past each such token is seen.", label="Every k-th token", least=1)
    first: int = option(0, "First tokens that are seen.", least=0)  # h2o-eval has an argument of this name

    def attend(self, call: LayerCall, state: None) -> None:
        q, heads = call.q, call.k.shape[1]
        m, l = (np.empty(q.shape[:2], np.float32) for _ in range(2))
        for rows in spans(len(q), self.block):
            cut = slice(rows.start, rows.stop)
            partial = PartialSoftmax(call.o[cut], m[cut], l[cut])
            with call.timer.measure("blocks"):
                block = {"q": q[cut], "k": call.k[cut], "v": call.v[cut]}
                call.provider.run(CHUNKED_INTRA_ATTENTION, **block, chunk_size=self.block, **partial.out)
                if past := self.seen(rows.start):
                    memory = np.tile(np.array(past, np.int32), (heads, 1))
                    call.provider.run(
                        MEMORY_FUSED_ATTENTION, call.kv, q=q[cut], memory=memory, **partial.intra
                    )

    def seen(self, start: int) -> list[int]:
        return [j for j in range(start) if j < self.first or j % self.every == 0 or j >= start - self.block]

    def visible_pairs(self, n: int) -> int:
        inside: Any = sum(len(rows) * (len(rows) + 1) // 2 for rows in spans(n, self.block))
        return int(inside) + sum(len(rows) * len(self.seen(rows.start)) for rows in spans(n, self.block))
