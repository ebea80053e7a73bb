"""OpenVINO GenAI's continuous batching pipeline, dense or with its sparse prefill attention."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

from h2o_cli.bench.convert import convert
from h2o_cli.bench.systems.system import Absent, Ids, Settings, System

# Versions that convert together. The newest transformers is too new for optimum-intel.
CONVERTER = ("optimum-intel==2.2.0", "transformers==5.5.4", "nncf==3.4.0", "openvino==2026.4.1")


def build_model(checkpoint: Path, folder: Path, weights: str) -> None:
    """Convert the checkpoint with optimum's command line. `weights` is a weight format as a bundle names it.

    Raises Absent if optimum is missing or fails.
    """
    tool = shutil.which("optimum-cli")
    if tool is None:
        raise Absent(
            "converting the model needs optimum-cli on the PATH: in an environment of its own, "
            f"pip install {' '.join(CONVERTER)}"
        )
    command = [tool, "export", "openvino", "--model", str(checkpoint), "--task", "text-generation-with-past"]
    command += ["--weight-format", {"float32": "fp32", "float16": "fp16"}.get(weights, weights), str(folder)]
    fails = f"optimum-cli fails on this checkpoint (tried with {' '.join(CONVERTER)})"
    convert(command, folder / "openvino_model.xml", fails)


class OpenVinoGenAISystem(System):
    """settings: folder, threads, dtype, sparse ("" for dense, "trishape" or "xattention"), micro_batch (0:
    whole prompts), and own_precision: the folder's weights and OpenVINO decide instead of dtype.
    """

    def __init__(self, settings: Settings) -> None:
        self._openvino: Any = importlib.import_module("openvino")
        self._library: Any = importlib.import_module("openvino_genai")
        self._settings = settings
        self.version = str(self._library.__version__)

    def open(self, context: int) -> None:
        scheduler = self._library.SchedulerConfig()
        scheduler.max_num_batched_tokens = self._settings["micro_batch"] or context
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 0
        scheduler.num_kv_blocks = context // 16 + 8
        if sparse := self._settings["sparse"]:
            scheduler.use_sparse_attention = True
            mode = getattr(self._library.SparseAttentionMode, sparse.upper())
            scheduler.sparse_attention_config = self._library.SparseAttentionConfig(mode=mode)
        properties = {"INFERENCE_NUM_THREADS": self._settings["threads"]}
        if not self._settings.get("own_precision"):
            type_name = "f16" if self._settings["dtype"] == "float16" else "f32"
            properties |= {"INFERENCE_PRECISION_HINT": type_name, "KV_CACHE_PRECISION": type_name}
        self._pipeline = self._library.ContinuousBatchingPipeline(
            self._settings["folder"], scheduler, "CPU", properties
        )
        self._requests = 0
        self._handle: Any = None

    def prefill(self, ids: Ids) -> int:
        if self._handle is not None:
            self._handle.cancel()
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
        config = self._library.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = 1 << 16, True, False
        self._requests += 1
        self._handle = self._pipeline.add_request(self._requests, self._openvino.Tensor(ids[None]), config)
        while not self._handle.can_read():
            self._pipeline.step()
        return self._read()

    def decode(self, token: int) -> None:
        """The pipeline accepts no token from outside: it appends its own greedy token, whatever `token`
        is.
        """
        self._pipeline.step()
        self._read()

    def _read(self) -> int:
        outputs = self._handle.read()
        return int(next(iter(outputs.values())).generated_ids[-1])
