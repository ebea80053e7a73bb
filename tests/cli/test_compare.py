"""h2o-compare in processes of its own: what passes, what is found, and what it leaves for Polygraphy."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import bundles
from tests.cli.conftest import Run
from tests.cli.exports import strict_json

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
NAME = "llama-g2-d64-llama3"
SHORT = ("-n", 200)
SMALL = ("--against", "functions", *SHORT, "-ub", 128, "-b", 128, "--h2o-local", 32, "--h2o-heavy", 32)


@pytest.fixture(scope="module")
def small(shared_folder: Path) -> Path:
    """A random model's bundle, whose checkpoint is still there."""
    return bundles.named(shared_folder, NAME)[1]


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    """`small`, for a test to write into."""
    return shutil.copytree(small, tmp_path / "copy")


def _flip(bundle: Path, name: str, position: int, bits: int, *, consistent: bool = False) -> None:
    """Change bits of one byte, and with `consistent` the manifest's hash of the file too."""
    content = bytearray((bundle / name).read_bytes())
    content[position] ^= bits
    (bundle / name).write_bytes(content)
    if consistent:
        manifest = json.loads((bundle / "manifest.json").read_text())
        manifest["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
        (bundle / "manifest.json").write_text(json.dumps(manifest))


def _of(document: Any, stage: str) -> list[Any]:
    return [row for row in document["rows"] if row["stage"] == stage]


# What passes


def test_the_example_bundle_passes_in_all_stages(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("compare", tiny_bundle, "--json", *SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    document = strict_json(done.stdout)
    assert document["passed"]
    assert (document["first_failure"], document["notes"]) == (None, [])
    dense = [f"dense_0{index}" for index in range(7)]
    assert [row["graph"] for row in _of(document, "files")] == [
        *dense, "phase1", "phase2", "decode", "tokenizer"
    ]  # fmt: skip
    assert sorted({row["graph"] for row in _of(document, "dense")}) == dense
    assert {row["output"] for row in _of(document, "dense") if row["graph"] == "dense_06"} == {"logits"}
    assert [(row["graph"], row["output"]) for row in _of(document, "attention")] == [
        *(("phase1", name) for name in ("o", "m", "l", "colsum")),
        *(("phase2", name) for name in ("o", "memory_next")),
        ("decode", "o"),
    ]
    assert [(row["graph"], row["reference"]) for row in _of(document, "pipeline")] == [
        ("full", "transformers")
    ]
    for row in document["rows"]:
        assert row["passed"]
        assert 0 <= row["mean_error"] <= row["max_error"] <= row["tolerance"]
        assert 0 <= row["quantile_error"] <= row["max_error"]
    for row in _of(document, "dense") + _of(document, "attention"):
        assert row["reference"] == "float64"
        assert row["tolerance"] == pytest.approx(2e-5 * row["max_value"] * (row["output"] != "memory_next"))


def test_a_table_for_people(h2o: Run, small: Path) -> None:
    flags = ("--prefill", "score=window window=16")
    done = h2o("compare", small, "--stage", "files", "--stage", "pipeline", *SMALL, *flags)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.decode()
    for words in ("max error", "mean", "p99", "dense_01", "transformers", "onnxruntime+functions", "h2o"):
        assert words in shown
    assert (shown.count("good"), shown.count("MISSED")) == (7 + 3, 0)
    assert "10 rows, all within their tolerance" in shown
    assert "float64" not in shown  # the stages that were not asked for


def test_two_providers_are_compared_with_each_other(compare_here: Callable[..., Any], small: Path) -> None:
    flags = ("--stage", "attention", "--stage", "pipeline", "--prefill", "heads=query", *SMALL)
    done = compare_here(small, "--compute", "attention=native", "--json", *flags)
    document = strict_json(done.stdout)
    assert (done.exit_code, document["passed"]) == (0, True)
    assert [row["subject"] for row in _of(document, "attention")] == ["native"] * 7 + ["functions"] * 7
    pairs = [(row["subject"], row["reference"]) for row in _of(document, "pipeline")]
    assert pairs == [("onnxruntime+native", "onnxruntime+functions")] * 2 + [
        ("onnxruntime+native", "transformers")
    ]
    assert _of(document, "pipeline")[1]["graph"] == (
        "h2o score=query batch_size=128 chunk_size=128 local=32 heavy=32 heads=query queries=16 grow=512"
    )


def test_a_float16_bundle_passes(compare_here: Callable[..., Any], shared_folder: Path) -> None:
    _, half = bundles.named(shared_folder, NAME, "-float16", dtype="float16")
    done = compare_here(half, "--json", *SHORT)
    document = strict_json(done.stdout)
    assert (done.exit_code, document["passed"]) == (0, True), done.stderr
    full = _of(document, "pipeline")[0]
    assert 1e-5 < full["max_error"] / full["max_value"] < full["tolerance"] / full["max_value"] < 0.1


# What is found


def test_a_flipped_byte_is_told_with_the_graph_it_is_in(compare_here: Callable[..., Any], copy: Path) -> None:
    weights = "onnx/weights/dense_01.bin"
    _flip(copy, weights, 9001, 0x01)
    done = compare_here(copy, "--json", *SHORT)
    assert done.exit_code == 3
    assert done.stderr == f"error: dense_01 differs first (files, content): altered: {weights}\n"
    document = strict_json(done.stdout)
    assert (document["passed"], document["first_failure"]) == (False, "dense_01: content")
    assert [row["graph"] for row in document["rows"] if row["stage"] == "files" and not row["passed"]] == [
        "dense_01"
    ]
    assert _of(document, "pipeline")  # all stages ran


@pytest.mark.parametrize(
    ("bits", "first"),
    [(0x80, "full differs first (pipeline, logprobs)"), (0x40, "dense_01 differs first (dense, q)")],
    ids=["another sign", "an exponent of 2^120 or so"],
)
def test_a_wrong_weight_with_a_right_hash_is_found_by_the_numbers(
    compare_here: Callable[..., Any], copy: Path, bits: int, first: str, recwarn: pytest.WarningsRecorder
) -> None:
    _flip(copy, "onnx/weights/dense_01.bin", 4 * 100 + 3, bits, consistent=True)
    done = compare_here(copy, "--json", "--stage", "files", "--stage", "dense", "--stage", "pipeline", *SHORT)
    assert done.exit_code == 3
    assert done.stderr.startswith(f"error: {first}: error ")
    assert "tolerance" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    document = strict_json(done.stdout)  # JSON has no infinity
    assert all(row["passed"] for row in _of(document, "files"))
    assert all(row["passed"] for row in _of(document, "dense")) or bits == 0x40
    assert not any(row["passed"] for row in _of(document, "pipeline"))
    assert not recwarn.list


def test_a_graph_that_cannot_be_read_is_told_and_ends_the_comparison(
    compare_here: Callable[..., Any], copy: Path
) -> None:
    file = copy / "onnx" / "phase2.onnx"
    file.write_bytes(b"\xff" * file.stat().st_size)
    done = compare_here(copy, "--json", *SHORT)
    assert done.exit_code == 3
    assert done.stderr == "error: phase2 differs first (files, content): altered: onnx/phase2.onnx\n"
    document = strict_json(done.stdout)
    assert len(document["notes"]) == 1
    assert document["notes"][0].startswith(f"not compared any further: {file}: ")
    assert len(_of(document, "files")) == 7
    alone = compare_here(copy, "--stage", "dense", "--stage", "attention")
    assert alone.exit_code == 1
    assert alone.stderr.startswith(f"error: {file}: ")
    assert len(alone.stderr.splitlines()) == 1


def test_a_graph_of_an_earlier_version_is_named(compare_here: Callable[..., Any], copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (phase2,) = (graph for graph in manifest["graphs"] if graph["name"] == "phase2")
    phase2["inputs"] = [given for given in phase2["inputs"] if given["name"] != "first"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    done = compare_here(copy, "--stage", "attention")
    told = f"{copy / 'onnx' / 'phase2.onnx'}: it has other inputs than this version's phase2"
    assert (done.exit_code, done.stderr) == (1, f"error: {told}: export the checkpoint again\n")


# The checkpoint


def test_another_checkpoint_is_no_truth(
    compare_here: Callable[..., Any], small: Path, shared_folder: Path
) -> None:
    other, _ = bundles.named(shared_folder, "llama-g1-d32")
    done = compare_here(small, "--stage", "pipeline", "--checkpoint", other, *SHORT)
    assert (done.exit_code, done.stdout) == (1, "")
    says = f"{other} is not the checkpoint that {small} was exported from (its hash differs)"
    sentence = f"error: {says}: name that one with --checkpoint\n"
    assert done.stderr == sentence


def test_a_checkpoint_elsewhere_serves_as_well(
    compare_here: Callable[..., Any], copy: Path, shared_folder: Path, tmp_path: Path
) -> None:
    checkpoint, _ = bundles.named(shared_folder, NAME)
    moved = shutil.copytree(checkpoint, tmp_path / "moved")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["checkpoint"]["source"] = "owner/name"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    note = "no comparison with transformers: owner/name is not here; give --checkpoint"
    done = compare_here(copy, "--json", *SHORT, "--stage", "dense", "--stage", "pipeline")
    document = strict_json(done.stdout)
    assert (done.exit_code, done.stderr, document["passed"]) == (0, "", True)
    assert document["notes"] == [note]
    assert {row["stage"] for row in document["rows"]} == {"dense"}
    done = compare_here(copy, "--json", "--stage", "pipeline", "--checkpoint", moved, *SHORT)
    assert (done.exit_code, len(strict_json(done.stdout)["rows"])) == (0, 1)


# Polygraphy's files


def test_polygraphy_goes_on_from_saved_files(
    compare_here: Callable[..., Any], small: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "deep" / "saved"
    done = compare_here(small, "--stage", "dense", "--stage", "attention", "--save", saved, *SHORT)
    assert (done.exit_code, done.stderr) == (0, "")
    names = ("dense_00", "dense_01", "dense_02", "phase1", "phase2", "decode")
    assert {path.name for path in saved.iterdir()} == {
        f"{name}.{what}.json" for name in names for what in ("inputs", "outputs")
    }
    command = [Path(sys.executable).with_name("polygraphy"), "run", small / "onnx" / "phase1.onnx"]
    inputs, outputs = (saved / f"phase1.{what}.json" for what in ("inputs", "outputs"))
    flags = ["--load-inputs", inputs, "--load-outputs", outputs, "--atol", "1e-4", "--rtol", "1e-4"]
    ran = subprocess.run([*command, "--onnxrt", *flags], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("Pass Rate: 100.00%") == 2, ran.stdout


# What it needs, and how it stops


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("onnxruntime", "ONNX Runtime is not installed: pip install 'h2o-edge[cpu]', or "),
        (
            "transformers",
            "comparing needs more packages (No module named 'transformers'): pip install "
            "--extra-index-url https://download.pytorch.org/whl/cpu 'h2o-edge[export,cpu]'; without that "
            "index torch may bring gigabytes of CUDA\n",
        ),
    ],
)
def test_a_missing_package_is_told_with_what_to_install(
    package: str, told: str, h2o: Run, small: Path, tmp_path: Path
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); del sys.modules[{package!r}]"
    done = h2o("compare", small, "--stage", "dense", "-n", 300, code=code)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith(f"error: {told}")
    assert done.stderr.count(b"\n") == 1


def test_a_wrong_checkpoint_is_refused_before_the_work(
    compare_here: Callable[..., Any], small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h2o_export import comparison

    def work(*args: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(comparison, "compare_files", work)
    done = compare_here(small, "--checkpoint", tmp_path, *SHORT)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{tmp_path}: has no config.json" in done.stderr
