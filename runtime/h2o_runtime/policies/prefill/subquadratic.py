"""Window, first tokens, strides and landmarks: N·log N pairs. The pattern of the crate
ruvllm_sparse_attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill.policy import LayerCall, PrefillPolicy, SavedState
from h2o_runtime.policies.subquadratic import Landmarks, Pattern
from h2o_runtime.schedule import rows_of_chunks, spans


@dataclass(frozen=True)
class Subquadratic(PrefillPolicy[Landmarks]):
    """A query's visible rows follow from its position alone, so rows of a shared beginning are always
    reused.
    """

    name: ClassVar[str] = "subquadratic"
    title: ClassVar[str] = "window, strides and landmarks"
    phases: ClassVar[tuple[str, ...]] = ("attention",)
    only_on_cpu: ClassVar[str] = "`policy=subquadratic` has kernels for CPUs only"

    window: int = option(128, "Earlier tokens that a query sees besides itself.", least=0)
    global_tokens: int = option(1, "First tokens of the prompt that every query sees.", least=0)
    log_stride: bool = option(
        True, "See tokens and landmarks at distances that are powers of two.", label="Strides 2^k"
    )
    block: int = option(
        64,
        "Tokens of a block; a query also sees means of blocks of keys and values, the landmarks. 0: none.",
        label="Landmark block",
        least=0,
    )
    count_bias: bool = option(
        False, "Weight a landmark by its number of tokens.", label="Landmarks by count", needs="block"
    )

    @property
    def pattern(self) -> Pattern:
        return Pattern(self.window, self.global_tokens, self.log_stride, self.block, self.count_bias)

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> Landmarks:
        """One layer's landmarks: each layer computes its own from the cache."""
        self.pattern.check_context(capacity)
        return Landmarks(self.pattern, model, 1, capacity, device)

    def attend(self, call: LayerCall, state: Landmarks) -> None:
        done = 0  # rows of the cache included in the landmarks
        for rows in spans(len(call.q), self.batch_size):
            call.flow.needs(rows.stop)
            kv = call.kv.upto(call.past + rows.stop)
            start = max(rows.start, call.needed)
            with call.timer.measure("attention"):
                state.update(call.provider, 0, kv, done)
                if start < rows.stop:
                    cut = slice(start, rows.stop)
                    self.pattern.attend(call.provider, call.q[cut], kv, state, 0, call.o[cut])
            done = call.past + rows.stop
            call.checkpoint(rows.stop)
            call.flow.finished(rows.stop)

    def cuts(self, n: int, reuse: Reuse, rows: int) -> Sequence[int]:
        """Between batches: inside of one, rows are added up in an order that depends on how many there are."""
        size = rows_of_chunks(rows, self.batch_size)
        return range(size, n, size)

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """All rows of a conversation that continues, including generated tokens; otherwise those that a fresh
        run would compute alike.
        """
        if shared == cached < n and origin.complete:
            return Reuse(Prefix.HISTORY, shared)
        reused = min(shared, origin.sparse, n - 1)
        return Reuse(Prefix.EXACT, reused) if reused else Reuse(Prefix.NONE, 0)

    def lasting_rows(self, n: int) -> int:
        return n

    def saved_state(self, state: Landmarks, length: int) -> SavedState:
        """No state: every prompt computes its landmarks again."""
        return SavedState({}, {})

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        return Landmarks.nbytes(self.pattern, model, 1, context)

    def visible_pairs(self, n: int) -> int:
        return int(self.pattern.visible(n).sum())

    def last_layer_pairs(self, n: int) -> int:
        return int(self.pattern.visible(n)[-1])

    def summary(self) -> str:
        blocks = f", landmarks of {self.block:,}" if self.block else ""
        return f"Window of {self.window:,}{blocks}"
