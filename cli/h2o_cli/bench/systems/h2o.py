"""Our runtime, with any policy."""

from __future__ import annotations

import importlib.metadata

import numpy as np

from h2o_cli.bench.systems.system import Ids, Settings, System
from h2o_runtime import Generator
from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt
from h2o_runtime.ort.cuda import import_onnxruntime
from h2o_runtime.policies.decode import DECODE
from h2o_runtime.policies.prefill import PREFILL


class H2OSystem(System):
    """settings: bundle, threads, prefill (settings of a policy), backend, device, attention,
    attention_precision, dense_precision, dense_form; and decoding (of a decode policy), where it is not exact.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._policy = PREFILL.make(settings["prefill"])
        self.version = f"{importlib.metadata.version('h2o-edge')} ({_executor(settings['backend'])})"

    def open(self, context: int) -> None:
        self._generator = Generator.load(
            self._settings["bundle"],
            context=context,
            decoding=DECODE.make(self._settings.get("decoding", {})),
            **{
                name: self._settings[name]
                for name in (
                    "backend",
                    "device",
                    "attention",
                    "attention_precision",
                    "dense_precision",
                    "threads",
                    "dense_form",
                )
            },
        )

    def prefill(self, ids: Ids) -> int:
        self._generator.reset()
        return int(np.argmax(self._generator.prefill(ids, self._policy)))

    def decode(self, token: int) -> None:
        self._generator.decode(token)

    def phases(self) -> dict[str, float]:
        return self._generator.timer.seconds


def _executor(backend: str) -> str:
    """Name and version of the backend."""
    module = import_onnxruntime() if backend == "onnxruntime" else import_tensorrt(TARGETS[backend])
    return f"{backend} {module.__version__}"
