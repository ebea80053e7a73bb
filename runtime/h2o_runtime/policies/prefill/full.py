"""Causal attention to everything: the reference that sparse policies approximate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.policies.prefill.policy import LayerCall, PrefillPolicy
from h2o_runtime.schedule import dense_cuts, spans


@dataclass(frozen=True)
class Full(PrefillPolicy[None]):
    """Cost grows with N². `batch_size` only limits the rows between two cancellation checks."""

    name: ClassVar[str] = "full"
    title: ClassVar[str] = "full"
    exact: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = ("phase1",)
    value_sizes: ClassVar[bool] = True
    spanning_lists: ClassVar[bool] = True
    mixed_rows: ClassVar[bool] = True
    joined_by_sinks: ClassVar[bool] = True

    def attend(self, call: LayerCall, state: None) -> None:
        attend_in_spans(call, self.batch_size, self.phases[0])

    def cuts(self, n: int, reuse: Reuse, rows: int) -> Sequence[int]:
        """Anywhere, but where kernels would take rows otherwise than at once."""
        return dense_cuts(n, self.batch_size, rows)

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """Any cached token equals that of a fresh run, except tokens from a sparse decode."""
        reused = min(origin.exact_rows(shared), n - 1)
        return Reuse(Prefix.EXACT, reused) if reused else Reuse(Prefix.NONE, 0)

    def lasting_rows(self, n: int) -> int:
        return n

    def visible_pairs(self, n: int) -> int:
        return n * (n + 1) // 2

    def last_layer_pairs(self, n: int) -> int:
        return n

    def summary(self) -> str:
        return "Full attention"


def attend_in_spans(call: LayerCall, limit: int, phase: str) -> None:
    """Every row sees all that its layer allows, `limit` rows at a time, timed as `phase`."""
    for rows in spans(len(call.q), limit):
        call.flow.needs(rows.stop)
        with call.timer.measure(phase):
            call.dense_rows(rows.start, rows.stop)
        call.checkpoint(rows.stop)
        call.flow.finished(rows.stop)
