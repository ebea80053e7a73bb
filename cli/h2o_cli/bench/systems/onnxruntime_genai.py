"""onnxruntime-genai, with the model that its own builder creates from the checkpoint."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from h2o_cli.bench.systems.base import Absent, Ids, Settings


def build_model(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Run the package's model builder without network access. If it fails, raises Absent with its last
    line.
    """
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint)]
    command += ["-o", str(folder), "-p", "fp16" if dtype == "float16" else "fp32", "-e", "cpu"]
    command += ["-c", str(folder / ".cache")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False
    )
    if done.returncode or not (folder / "genai_config.json").is_file():
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise Absent(f"its model builder fails on this checkpoint: {lines[-1][:300]}")


class OnnxRuntimeGenAISystem:
    """settings: folder, threads."""

    def __init__(self, settings: Settings) -> None:
        try:
            self._library: Any = importlib.import_module("onnxruntime_genai")
        except ImportError as error:
            raise Absent(f"not installed ({error}): pip install onnxruntime-genai") from None
        self._settings = settings
        self.version = str(self._library.__version__)

    def open(self, context: int) -> None:
        config = self._library.Config(self._settings["folder"])
        threads = {"intra_op_num_threads": self._settings["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self._model = self._library.Model(config)
        self._context = context

    def prefill(self, ids: Ids) -> int:
        self._generator = None  # two caches at once would count twice
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self._context, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        self._generator.append_tokens(ids.astype(np.int32)[None])
        return int(np.argmax(np.asarray(self._generator.get_logits()).reshape(-1)))

    def decode(self, token: int) -> None:
        assert self._generator is not None
        self._generator.append_tokens(np.array([[token]], np.int32))
        self._generator.get_logits()

    def phases(self) -> dict[str, float]:
        return {}
