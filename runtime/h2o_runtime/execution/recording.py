"""Work that a GPU records once and replays."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.errors import BackendError

if TYPE_CHECKING:
    from h2o_plugins._cuda import Graph

log = logging.getLogger(__name__)


class Recording:
    """Calls that are always the same: a CUDA graph from their second run on.

    The first run allocates for all sizes, which a recording may not.
    """

    def __init__(self, device: CudaDevice, enqueue: Callable[[], None], title: str, possible: bool) -> None:
        """enqueue: makes the calls. title: for the log. possible: whether they can be recorded."""
        self._device, self._enqueue, self._title, self._possible = device, enqueue, title, possible
        self._has_run = False
        self._graph: Graph | None = None

    def run(self) -> None:
        """Run the calls, and wait for their end."""
        lanes = self._device.lanes  # a prefill leaves the lanes joined
        if self._graph is None and self._has_run and self._possible:
            self._graph = self._record()
            self._possible = self._graph is not None
        if self._graph is not None:
            self._graph.launch(lanes.dense)
        else:
            with lanes.one():
                self._enqueue()
        self._has_run = True
        lanes.dense.synchronize()

    def _record(self) -> Graph | None:
        lane, failed = self._device.lanes.dense, self._device.module.CudaError
        collecting = gc.isenabled()
        gc.disable()  # freeing memory while the lane records would end the recording
        lane.begin_capture()
        try:
            with self._device.lanes.one():
                self._enqueue()
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
        log.info("recorded %s as one CUDA graph", self._title)
        return graph
