"""The layer loop on a GPU: its decode step is recorded once and replayed for every token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from h2o_runtime.backend import Backend
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Rows
from h2o_runtime.devices import Tensor
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.execution.device_rows import DeviceRows, Recording, RowInputs
from h2o_runtime.execution.forward import Float32, Forward
from h2o_runtime.kv import KV
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import LiveLayers
from h2o_runtime.operators import STEP_ROWS_ATTENTION
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import Session

log = logging.getLogger(__name__)


class RecordedForward(Forward):
    """Decode as one CUDA graph over all layers, if the backend's calls can be recorded.

    Exact attention to rows that never move has one recording for all sessions, and several rows in a step
    (`DeviceRows`). Any other step has a recording of each session. Both read on the device where the new row
    goes and how long the cache is.
    """

    device: CudaDevice
    rows_by_layers = False
    no_graph_because = (
        "between the dense graphs of a step is more than attention, which takes one row on a GPU"
    )

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        layers: LiveLayers,
        decoding: DecodePolicy[Any],
        activations: Activations,
        device: CudaDevice,
    ) -> None:
        super().__init__(manifest, backend, layers, decoding, activations, device)
        vocabulary = manifest.model.vocab_size
        self._answer: Float32 = device.module.PinnedMemory(4 * vocabulary).array().view(np.float32)
        self._recordings: WeakKeyDictionary[Session, Recording] = WeakKeyDictionary()
        self._rows: DeviceRows | None = None

    def graph(self, session: Session) -> DeviceRows | None:
        if self._rows is None:
            exact = self.layers.rows_together and self.decoding.full_attention_only
            if not exact or session.store.fixed_rows() is None:
                return None
            limit, possible = self.most_step_rows, self._recordable()
            self._rows = DeviceRows(self.model, self.device, limit, self._bind_rows, possible)
        return self._rows if self._rows.takes(session) else None

    def decode_by_layers(self, token: int, session: Session) -> Float32:
        self.give_step(token, session)
        recording = self._recordings.get(session)
        if recording is None:
            possible = session.store.recordable and self._recordable()
            title = f"the decode step of {self.model.layers} layers"
            live = ref(session)  # the recording ends with it
            recording = Recording(self.device, lambda: self._enqueue_step(live()), title, possible)
            self._recordings[session] = recording
        recording.run()
        return self._answer

    def warm_up(self, policy: PrefillPolicy[Any], session: Session) -> None:
        """Read a logical batch of arbitrary tokens, for the one-time work of libraries and of kernels.

        Arenas then have room for the largest batch, in one block. The session must be empty.
        """
        n = min(policy.batch_size, len(self.buffers.tokens), self.backend.most_rows)
        self._read_arbitrary(n, policy, session)

    def release(self) -> None:
        super().release()
        self._recordings.clear()
        self._rows = None

    def _enqueue_step(self, session: Session | None) -> None:
        assert session is not None
        logits = self.step(Rows(0, 1, at=self._where[1:2]), self._where[2:3], session)
        self.device.lanes.dense.download(logits.address, self._answer)

    def _recordable(self) -> bool:
        if not self.backend.recordable:
            return False
        if self.model.experts is not None:
            log.warning(
                "decode runs step by step, because it cannot be recorded: which rows an expert gets depends on "
                "the router, and a recording would repeat the choice of its first token"
            )
            return False
        return True

    def _bind_rows(self, inputs: RowInputs, rows: int, caches: Sequence[KV]) -> Callable[[], Tensor]:
        """A step of so many rows of any sessions, whose caches are like these."""
        calls = []
        for layer, kv in enumerate(caches):
            new = inputs.new[layer].rows(0, rows)
            tensors = self.tensors.of_layer(
                layer, Span(0, rows), inputs.tokens[:rows], inputs.positions[:rows], new, {}
            )
            calls.append(self.backend.bound(self.dense_graphs[layer], *tensors))
            calls.append(self._bind_attention(layer, inputs, rows, kv))
        calls.append(self.binder.head(inputs.tokens[:rows]))

        def step() -> Tensor:
            for call in calls:
                call()
            return self.buffers.logits[:rows]

        return step

    def _bind_attention(self, layer: int, inputs: RowInputs, rows: int, kv: KV) -> Callable[[], None]:
        tensors = {
            **inputs.new[layer].rows(0, rows),
            "q": self.buffers.q[layer][:rows],
            "o": self.buffers.attention[layer][:rows],
            "lengths": inputs.lengths[:rows],
            "caches": inputs.caches[layer][:rows],
        }
        provider = self.layers.providers[layer]
        return lambda: provider.run(STEP_ROWS_ATTENTION, kv, **tensors)
