"""The files that h2o-bench makes for other systems, and the weights they get."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests import bundles
from tests.cli.test_bench import LLAMA_CPP
from tests.reference import gguf_files

from h2o_cli.bench import convert
from h2o_cli.bench.benchmark_model import BenchmarkModel
from h2o_cli.bench.contestants import Entry, models
from h2o_cli.bench.gguf_file import FILE, pairs_side_by_side, write_gguf
from h2o_cli.bench.systems.system import Absent
from h2o_runtime.policies.prefill import Full, Query

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def test_gguf_rotates_neighbours_where_the_checkpoint_rotates_halves() -> None:
    weight = np.arange(8)[:, None] * np.ones((1, 2))
    assert pairs_side_by_side(weight, heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(("form", "kind"), [("float32", "F32"), ("int8", "Q8_0"), ("int4", "Q4_0")])
def test_llama_cpp_gets_as_many_bits(shared_folder: Path, tmp_path: Path, form: str, kind: str) -> None:
    checkpoint, _ = bundles.named(shared_folder, "llama-g2-d64-llama3")
    head = "int8" if form == "int4" else form
    write_gguf(checkpoint, tmp_path, form, head)
    file = gguf.GGUFReader(tmp_path / FILE)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert kinds["blk.0.ffn_up.weight"] == kind
    assert kinds["token_embd.weight"] == ("Q8_0" if form == "int4" else kind)
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    stored = next(tensor for tensor in file.tensors if tensor.name == "blk.0.ffn_up.weight")
    values = gguf.dequantize(stored.data, stored.tensor_type)
    truth = load_file(checkpoint / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    step = np.abs(truth).max() / {"float32": 1e6, "int8": 127, "int4": 8}[form]
    assert np.abs(values - truth).max() <= step


def run_here(command: Sequence[str], output: Path, fails: str) -> None:
    """A process of its own would load PyTorch once more."""
    with mock.patch.object(sys, "argv", command[2:]):
        runpy.run_path(str(convert.__file__), run_name="__main__")


def test_a_converter_gets_the_floats_of_a_gguf_file(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "convert", run_here)
    checkpoint, bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")
    file = gguf_files.write(checkpoint, tmp_path / "model.gguf")
    model = BenchmarkModel.open(str(bundle), tmp_path, "float32", file)
    folder = Entry(model, 1, Query(), "onnxruntime", "cpu", "auto").folder()
    truth, found = (load_file(place / "model.safetensors") for place in (checkpoint, folder))
    for name, weight in found.items():
        assert np.array_equal(weight, truth[name].astype(np.float32)), name
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("decoding", [False, True])
def test_full_attention_is_measured_where_it_is_configured(
    tiny_bundle: Path, tmp_path: Path, decoding: bool
) -> None:
    model = BenchmarkModel.open(str(tiny_bundle), tmp_path, "float32", None)
    entry = Entry(model, 1, Full(batch_size=512), "onnxruntime", "cpu", "auto")
    (ours,) = models(entry, (), decoding)
    assert (ours.name, ours.label) == ("full", "full batch_size=512")


def gguf_entry(bundle: Path, folder: Path) -> Entry:
    """Of a bundle whose checkpoint is an empty GGUF file."""
    file = folder / "model.gguf"
    file.touch()
    model = BenchmarkModel.open(str(bundle), folder, "float32", file)
    return Entry(model, 1, Query(), "onnxruntime", "cpu", "auto")


@pytest.mark.skipif(not LLAMA_CPP, reason="llama-cpp-python is not installed")
def test_llama_cpp_reads_the_gguf_file_that_a_bundle_was_made_of(tiny_bundle: Path, tmp_path: Path) -> None:
    entry = gguf_entry(tiny_bundle, tmp_path)
    peers = [one for one in models(entry, ("llama.cpp",), decoding=False) if one.name == "llama.cpp"]
    assert {one.ready().settings["file"] for one in peers} == {str(tmp_path / "model.gguf")}


def test_a_gguf_file_that_transformers_cannot_read_is_named(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last line of the process that tried it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'first line\\nno such layer\\n' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(Absent, match=r"^transformers cannot read model\.gguf: no such layer$"):
        gguf_entry(tiny_bundle, tmp_path).folder()
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(("weights", "formats"), [("int8", ("int8", "int4")), ("int4", ("int4",))])
def test_small_weights_of_onnxruntime_genai_are_told_apart(
    shared_folder: Path, tmp_path: Path, weights: str, formats: tuple[str, ...]
) -> None:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3", f"-{weights}", weights=weights)[1]
    model = BenchmarkModel.open(str(bundle), tmp_path, "float32", None)
    entry = Entry(model, 1, Query(), "onnxruntime", "cpu", "auto")
    found = models(entry, ("onnxruntime-genai",), decoding=False)
    names = [one.name for one in found if one.system == "onnxruntime-genai"]
    assert names == [f"onnxruntime-genai {one}" for one in formats]


# Forms of integer weights
