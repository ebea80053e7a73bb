"""h2o-export: what it writes, what it prints, and what its validation finds."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from safetensors.torch import load_file, save_file
from tests import bundles, family_models
from tests.cli.conftest import Run
from tests.cli.exports import NAME, files, strict_json
from tests.cli.progress_lines import without_stages
from tests.reference import gguf_files

from h2o_export import exporter
from h2o_export.formats import blocks
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest

pytestmark = pytest.mark.timeout(600)
GRAPHS = ["dense_00", "dense_01", "dense_02", "phase1", "phase2", "decode"]
FLAGS = (
    *("--prefill", "h2o score=window window=16 heads=query dense_tail=64"),
    *("-b", 512, "-ub", 128, "--h2o-local", 32, "--h2o-heavy", 48),
)
PREFILL = {
    "policy": "h2o",
    "score": "window",
    "batch_size": 512,
    "chunk_size": 128,
    "local": 32,
    "heavy": 48,
    "window": 16,
    "heads": "query",
    "dense_tail": 64,
}


@pytest.fixture(scope="module")
def exported(h2o: Run, checkpoint: Path, shared_folder: Path) -> tuple[Path, Any]:
    """A bundle that h2o-export wrote with FLAGS, and the JSON document that it printed; made once."""
    bundle, printed = shared_folder / "new" / "folder" / "bundle", shared_folder / "printed.json"
    with (shared_folder / "exported.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            done = h2o("export", checkpoint, "-o", bundle, *FLAGS, "--json")
            assert (done.returncode, without_stages(done.stderr)) == (0, b"")
            printed.write_bytes(done.stdout)
    return bundle, strict_json(printed.read_bytes())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# What it writes


@pytest.mark.slow
def test_a_bundle_in_float32_with_all_that_the_manifest_tells(
    exported: tuple[Path, Any], checkpoint: Path
) -> None:
    bundle, document = exported
    manifest = json.loads((bundle / "manifest.json").read_text())

    assert document["bundle"] == str(bundle)
    for key in ("model", "checkpoint", "validation"):
        assert document[key] == manifest[key]
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]
    written = files(bundle)
    del written["manifest.json"]
    assert written == {name: entry["bytes"] for name, entry in manifest["files"].items()}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < set(written)
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == _sha256(bundle / name), name

    config = json.loads((checkpoint / "config.json").read_text())
    model = manifest["model"]
    assert model["family"] == "llama"
    assert (model["layers"], model["hidden_size"]) == (config["num_hidden_layers"], config["hidden_size"])
    assert (model["query_heads"], model["kv_heads"], model["head_size"]) == (4, 2, 64)
    assert (model["vocab_size"], model["tied"], model["dtype"]) == (config["vocab_size"], True, "float32")
    stored = load_file(checkpoint / "model.safetensors")
    assert model["parameters"] == sum(tensor.numel() for tensor in stored.values())

    hashes = b"".join(bytes.fromhex(_sha256(checkpoint / n)) for n in ("config.json", "model.safetensors"))
    sha256 = hashlib.sha256(hashes).hexdigest()
    assert manifest["checkpoint"] == {"source": str(checkpoint), "sha256": sha256, "adapter": None}
    assert manifest["prefill"] == PREFILL
    assert manifest["opset"] == {"": 18, "h2o": 1}
    for package in ("h2o-edge", "torch", "transformers", "onnx", "onnxscript", "onnxruntime"):
        assert manifest["created_by"][package] == importlib.metadata.version(package)
    validation = manifest["validation"]
    assert validation["passed"]
    assert validation["tokens"] > 200
    assert validation["relative_error"] < validation["tolerance"] == 1e-4
    assert 0 < validation["max_abs_error"] < 1e-3 * validation["max_abs_value"]
    assert len(validation["layers"]) == 2
    assert max(validation["layers"]) < 1e-5


def test_a_bundle_of_a_gguf_file(
    export_here: Callable[..., Any], compare_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    file, bundle = gguf_files.write(checkpoint, tmp_path / "model.gguf"), tmp_path / "bundle"
    done = export_here(file, "-o", bundle, "--json")
    assert done.exit_code == 0
    assert "its tokenizer has 4097 tokens but its embedding only 4096" in " ".join(done.stderr.split())
    manifest = Manifest.read(bundle)
    assert manifest.validation is not None
    assert manifest.validation.passed
    assert manifest.checkpoint.source == str(file)
    assert manifest.checkpoint.sha256 == hashlib.sha256(bytes.fromhex(_sha256(file))).hexdigest()
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} < set(manifest.files)
    compared = compare_here(bundle, "--stage", "pipeline", "-n", 64)
    assert (compared.exit_code, compared.stderr) == (0, "")
    assert "transformers" in compared.stdout


def test_the_manifest_describes_the_graphs_that_are_there(shared_folder: Path) -> None:
    _, bundle = bundles.named(shared_folder, NAME)
    manifest = Manifest.read(bundle)
    assert [graph.name for graph in manifest.graphs] == GRAPHS
    kinds = {
        onnx.TensorProto.FLOAT: "float32",
        onnx.TensorProto.INT64: "int64",
        onnx.TensorProto.INT32: "int32",
    }
    for spec in manifest.graphs:
        model = onnx.load(bundle / spec.file, load_external_data=False)
        for tensors, values in ((spec.inputs, model.graph.input), (spec.outputs, model.graph.output)):
            assert [tensor.name for tensor in tensors] == [value.name for value in values]
            assert [tensor.dtype for tensor in tensors] == [
                kinds[value.type.tensor_type.elem_type] for value in values
            ]
            for tensor, value in zip(tensors, values, strict=True):
                shape = value.type.tensor_type.shape.dim
                assert len(tensor.shape) == len(shape)
                for size, dim in zip(tensor.shape, shape, strict=True):
                    assert isinstance(size, str) or size == dim.dim_value
        outside = {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        assert {f"onnx/{name}" for name in outside} == set(spec.weights)


def test_a_bundle_in_float16_with_a_table_of_errors(
    export_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    done = export_here(checkpoint, "-o", tmp_path / "half", "--dtype", "float16")
    assert (done.exit_code, without_stages(done.stderr.encode())) == (0, b"")
    shown = done.stdout
    for words in ("hidden states, largest", "logits", "tolerance", "good", f"wrote {tmp_path / 'half'}: 6"):
        assert words in shown
    manifest = Manifest.read(tmp_path / "half")
    assert manifest.model.dtype == "float16"
    assert manifest.validation is not None
    assert 1e-5 < manifest.validation.relative_error < manifest.validation.tolerance < 1e-1
    assert {tensor.dtype for tensor in manifest.graphs[1].inputs[:2]} == {"float16"}
    assert {tensor.dtype for tensor in manifest.graphs[1].inputs[2:]} == {"float32"}  # cos and sin
    weights = sum(size for name, size in files(tmp_path / "half").items() if name.endswith(".bin"))
    assert weights < 2 * manifest.model.parameters + 4096 * 40  # tensors begin at pages


def test_the_flags_of_the_export_are_the_defaults_of_the_bundle(h2o: Run, exported: tuple[Path, Any]) -> None:
    bundle, _ = exported
    ids = bundles.random_ids(300)
    with Generator.load(bundle, context=512) as generator:
        generator.prefill(ids)
        sets = generator.report().last
    assert [layer.shape for layer in sets] == [(4, 80)] * 2
    answer = h2o("run", bundle, "-p", "a", "-n", 1, "--json", "-ub", 256)
    assert strict_json(answer.stdout)["prefill"] == PREFILL | {"chunk_size": 256}


# What --dry-run prints


def test_a_dry_run_writes_nothing_and_tells_all(
    export_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    args = (checkpoint, "-o", tmp_path / "bundle", *FLAGS, "--dry-run", "-c", 3000)
    done = export_here(*args, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    plan = strict_json(done.stdout)
    assert plan["output"] == str(tmp_path / "bundle")
    assert plan["prefill"] == PREFILL
    assert [graph["name"] for graph in plan["graphs"]] == GRAPHS
    manifest = Manifest.read(bundles.named(checkpoint.parent, NAME)[1])
    assert plan["model"] == manifest.model.model_dump() | {"max_position_embeddings": 3000}
    for graph, real in zip(plan["graphs"][:3], manifest.graphs[:3], strict=True):
        assert graph["inputs"] == json.loads(real.model_dump_json())["inputs"]
        assert graph["outputs"] == json.loads(real.model_dump_json())["outputs"]
    memory, model = plan["memory_bytes"], plan["model"]
    assert plan["context"] == 3000
    assert memory["cache"] == 2 * model["layers"] * 3000 * model["kv_heads"] * model["head_size"] * 4
    assert (
        plan["cache_bytes"]["contiguous float32"] == memory["cache"] > plan["cache_bytes"]["contiguous int8"]
    )
    assert plan["disk_bytes"] == 4 * model["parameters"] <= memory["weights"]
    stored = sum(
        size for name, size in files(bundles.named(checkpoint.parent, NAME)[1]).items() if ".bin" in name
    )
    assert 0 <= stored - plan["disk_bytes"] < 4096 * 40  # tensors begin at pages
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")

    text = export_here(*args).stdout
    for words in ("llama: 2 layers, hidden 64", "tied", "chunk_size=128", "dense_01", "phase2", "on disk"):
        assert words in text
    assert "float32[n, 4, 64]" in text
    assert f"contiguous float32 {memory['cache'] / 2**20:.1f} MiB, contiguous float16" in text
    assert f"at run time, context 3,000: weights {memory['weights'] / 2**20:.1f} MiB" in text
    assert text.endswith("nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_which_list_of_longrope_a_bundle_has_is_said(
    export_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    folder = family_models.save(tmp_path / "phi3", "phi3-longrope")
    long = "LongRoPE: long_factor, for contexts above 32 tokens; -c 32 takes short_factor"
    short = "LongRoPE: short_factor, for contexts up to 32 tokens; a longer one takes long_factor"
    assert long in export_here(folder, "--dry-run").output
    assert short in export_here(folder, "--dry-run", "-c", 32).output
    plan = strict_json(export_here(folder, "--dry-run", "-c", 32, "--json").stdout)
    assert plan["model"]["rope_ends"]
    assert "LongRoPE" not in export_here(checkpoint, "--dry-run").output


def test_a_dry_run_needs_no_output_and_no_free_place(
    export_here: Callable[..., Any], checkpoint: Path, whole_bundle: Path
) -> None:
    before = files(whole_bundle)
    half = strict_json(export_here(checkpoint, "--dry-run", "--json", "--dtype", "float16").stdout)
    there = export_here(checkpoint, "--dry-run", "--json", "-o", whole_bundle)
    assert there.exit_code == 0
    assert 2 * half["disk_bytes"] == strict_json(there.stdout)["disk_bytes"]
    sentence = f"{whole_bundle}: exists already; choose another folder or add --force"
    assert (half["refused"], strict_json(there.stdout)["refused"]) == (None, sentence)
    text = export_here(checkpoint, "--dry-run", "-o", whole_bundle).stdout
    assert text.endswith(f"{sentence}\ndry run: nothing was written\n")
    assert half["context"] == half["model"]["max_position_embeddings"] == 4096
    assert files(whole_bundle) == before


# What the validation finds, and how many stages were announced before it


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export tells as many stages as it announced."""

    @contextmanager
    def stages(first: str, steps: int, width: int) -> Iterator[Callable[[str], None]]:
        told: list[str] = []
        yield told.append
        assert len(told) == steps, told

    monkeypatch.setattr("h2o_cli.export.stages", stages)


def test_an_export_without_validation_has_fewer_stages(
    counted: None, export_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    done = export_here(checkpoint, "-o", tmp_path / "bundle", "--no-validate")
    assert done.exit_code == 0, done.exception


def test_a_weight_that_came_out_wrong_is_a_missed_tolerance(
    counted: None,
    export_here: Callable[..., Any],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = exporter.write_bundle

    def damaged(*args: Any) -> Manifest:
        manifest = write(*args)
        weights = args[2] / "onnx" / "weights" / "dense_01.bin"
        content = bytearray(weights.read_bytes())
        content[3] ^= 0x80  # the sign of one number
        weights.write_bytes(content)
        return manifest

    monkeypatch.setattr(exporter, "write_bundle", damaged)
    done = export_here(checkpoint, "-o", tmp_path / "bundle")
    assert done.exit_code == 3
    assert "MISSED" in done.stdout
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {tmp_path / 'bundle'}: its logits differ from the checkpoint's by "
    )
    assert len(done.stderr.splitlines()) == 1
    validation = Manifest.read(tmp_path / "bundle").validation
    assert validation is not None
    assert not validation.passed
    assert validation.relative_error > validation.tolerance
    # The damage is after the first layer's attention, and the numbers say so.
    assert validation.layers[0] < 1e-6 < 1e-5 < validation.layers[1]


def test_activations_beyond_float16_are_a_missed_tolerance(
    export_here: Callable[..., Any], checkpoint: Path, tmp_path: Path
) -> None:
    loud = shutil.copytree(checkpoint, tmp_path / "loud")
    tensors = load_file(loud / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "v_proj.weight")):
            tensors[name] *= 3e3  # float16 holds each weight, and not their products
    save_file(tensors, loud / "model.safetensors", metadata={"format": "pt"})
    done = export_here(loud, "-o", tmp_path / "half", "--dtype", "float16", "--json")
    assert done.exit_code == 3
    # On a busy machine an error comes behind lines of progress.
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'half'}: its logits differ")
    assert strict_json(done.stdout)["validation"]["passed"] is False
    assert Manifest.read(tmp_path / "half").validation is not None  # it can still be read


def test_weights_that_are_rounded_to_garbage_are_missed_though_the_bundle_computes_them_exactly(
    counted: None,
    export_here: Callable[..., Any],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounded = blocks._round

    def garbage(*given: Any) -> Any:
        q, scales = rounded(*given)
        return q, 3 * scales

    monkeypatch.setattr(blocks, "_round", garbage)
    done = export_here(checkpoint, "-o", tmp_path / "bundle", "--weights", "int8 calibrate=none")
    assert done.exit_code == 3
    assert (done.stdout.count("good"), done.stdout.count("MISSED")) == (2, 1)
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {tmp_path / 'bundle'}: it predicts other words than the checkpoint"
    )
    assert done.stderr.endswith("export with --weights float, or with a smaller block_size\n")
    validation = Manifest.read(tmp_path / "bundle").validation
    assert validation is not None
    assert validation.relative_error <= validation.tolerance
    assert validation.divergence is not None
    assert validation.divergence > 0.5
