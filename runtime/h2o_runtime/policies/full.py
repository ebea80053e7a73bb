"""Plain causal attention to everything: the truth that sparse policies approximate."""

from __future__ import annotations

from dataclasses import dataclass

from h2o_runtime.devices import Device
from h2o_runtime.manifest import ModelSpec
from h2o_runtime.policies.base import LayerCall
from h2o_runtime.schedule import spans


@dataclass(frozen=True)
class Full:
    """Cost grows with N². `batch_size` only bounds how many rows run between two cancellation checks."""

    batch_size: int = 4096

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> None:
        return None

    def attend(self, call: LayerCall, state: None) -> None:
        for rows in spans(len(call.q), self.batch_size):
            call.flow.needs(rows.stop)
            with call.timer.measure("phase1"):
                call.dense_rows(rows.start, rows.stop)
            call.checkpoint(rows.stop)
            call.flow.finished(rows.stop)
