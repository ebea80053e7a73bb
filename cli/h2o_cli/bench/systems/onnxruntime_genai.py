"""onnxruntime-genai, with the model that its own builder creates from the checkpoint."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from h2o_cli.bench.convert import convert
from h2o_cli.bench.systems.system import Ids, Settings, System

INTEGERS = ("int8", "int4")  # weight formats
BLOCK, INTEGER_ACTIVATIONS = 32, 4  # the latter is an accuracy level


def build_model(checkpoint: Path, folder: Path, weights: str) -> None:
    """Run the package's model builder. Raises Absent if it fails.

    `weights` is a weight format as a bundle names it. Products with integers round activations to int8.
    """
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint)]
    command += ["-o", str(folder), "-p", {"float32": "fp32", "float16": "fp16"}.get(weights, weights)]
    command += ["-e", "cpu", "-c", str(folder / ".cache")]
    if weights in INTEGERS:
        command += ["--extra_options", f"accuracy_level={INTEGER_ACTIVATIONS}", f"block_size={BLOCK}"]
    convert(command, folder / "genai_config.json", "its model builder fails on this checkpoint")


class OnnxRuntimeGenAISystem(System):
    """settings: folder, threads."""

    def __init__(self, settings: Settings) -> None:
        self._library: Any = importlib.import_module("onnxruntime_genai")
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
