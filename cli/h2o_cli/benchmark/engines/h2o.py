"""Our own runtime, under either policy."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict

import numpy as np

from h2o_cli.benchmark.engines.base import Ids, Settings
from h2o_runtime import Generator, PrefillConfig


class H2OEngine:
    """settings: bundle, threads, prefill (fields of PrefillConfig), attention."""

    def __init__(self, settings: Settings) -> None:
        import onnxruntime

        self._settings = settings
        self._config = PrefillConfig(**settings["prefill"])
        self.version = f"{importlib.metadata.version('h2o-edge')} (onnxruntime {onnxruntime.__version__})"

    def open(self, context: int) -> None:
        self._generator = Generator.load(
            self._settings["bundle"],
            context=context,
            attention=self._settings["attention"],
            threads=self._settings["threads"],
        )

    def prefill(self, ids: Ids) -> int:
        self._generator.reset()
        return int(np.argmax(self._generator.prefill(ids, self._config)))

    def decode(self, token: int) -> None:
        self._generator.decode(token)

    def phases(self) -> dict[str, float]:
        return asdict(self._generator.timer)
