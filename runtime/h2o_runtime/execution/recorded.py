"""The layer loop on a GPU: its decode step is recorded once and replayed for every token."""

from __future__ import annotations

import gc
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from h2o_runtime.backends.base import Backend
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Rows
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.errors import BackendError
from h2o_runtime.execution.forward import Float32, Forward
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.model import LiveLayers
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.schedule import Span
from h2o_runtime.sessions.session import Session

if TYPE_CHECKING:
    from h2o_plugins._cuda import Graph

log = logging.getLogger(__name__)


@dataclass
class _Recording:
    """Of one session's decode step. possible: whether it can be recorded."""

    possible: bool
    steps: int = 0
    graph: Graph | None = None


class RecordedForward(Forward):
    """Decode as one CUDA graph over all layers, if the backend's calls can be recorded.

    The recording reads the new row's place and the cache's length on the device.
    """

    device: CudaDevice

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
        self._recordings: WeakKeyDictionary[Session, _Recording] = WeakKeyDictionary()

    def decode(self, token: int, session: Session) -> Float32:
        lanes = self.device.lanes  # a prefill leaves the lanes joined
        self.give_step(token, session)
        recording = self._recordings.get(session)
        if recording is None:
            recording = _Recording(self._recordable(session))
            self._recordings[session] = recording
        if recording.graph is None and recording.steps and recording.possible:
            # the first step has allocated for every size; this one need not
            recording.graph = self._record(session)
            recording.possible = recording.graph is not None
        if recording.graph is None:
            self._step(session)
        else:
            recording.graph.launch(lanes.dense)
        recording.steps += 1
        lanes.dense.synchronize()
        return self._answer

    def warm_up(self, rows: int, session: Session) -> None:
        """Run every dense graph once on `rows` arbitrary rows, for the one-time work of libraries.

        Arenas then have room for the largest batch, in one block. The session must be empty.
        """
        rows = min(rows, len(self.buffers.tokens), self.backend.most_rows)
        self.device.clear(self.buffers.tokens[:rows])
        self.device.lanes.join()
        session.store.before_prompt(0, rows, rows)
        for layer in range(self.model.layers):
            with session.store.open(layer) as cache:
                self.dense(layer, Span(0, rows), session, cache)
        self.head(Span(0, min(rows, self.head_rows)))
        self.device.synchronize()
        session.store.truncate(0)

    def release(self) -> None:
        super().release()
        self._recordings.clear()

    def _recordable(self, session: Session) -> bool:
        if not (self.backend.recordable and session.store.recordable):
            return False
        if self.model.experts is not None:
            log.warning(
                "decode runs step by step, because it cannot be recorded: which rows an expert gets depends on "
                "the router, and a recording would repeat the choice of its first token"
            )
            return False
        return True

    def _record(self, session: Session) -> Graph | None:
        lane, failed = self.device.lanes.dense, self.device.module.CudaError
        collecting = gc.isenabled()
        gc.disable()  # freeing memory while the lane records would end the recording
        lane.begin_capture()
        try:
            self._step(session)
            graph = lane.end_capture()
        except BaseException as error:
            with suppress(failed):
                lane.end_capture()
            if not isinstance(error, BackendError | failed):
                raise
            log.warning("decode runs step by step, because it cannot be recorded: %s", error)
            return None
        finally:
            if collecting:
                gc.enable()
        log.info("recorded the decode step of %d layers as one CUDA graph", self.model.layers)
        return graph

    def _step(self, session: Session) -> None:
        with self.device.lanes.one():
            logits = self.step(Rows(0, 1, at=self._where[1:2]), self._where[2:3], session)
            self.device.lanes.dense.download(logits.address, self._answer)
