"""The checks that bench/gpu_check runs, on the emulation and on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.gpu_check import (
    end_to_end,
    four_requests,
    model_rows,
    parts,
    policies,
    prefill_times,
    report,
)
from tests import bundles, latent_models
from tests.prefill import altered

from h2o_runtime.policies.prefill import Query
from h2o_runtime.schedule import Span

REPO = Path(__file__).resolve().parents[3]
TOKENIZER = REPO / "examples" / "tiny-llama"
SMALL = {  # of a random model
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def test_sets_are_compared_by_what_is_in_them() -> None:
    truth = np.array([[[1, 5, 9], [2, 3, 4]], [[0, 1, 2], [7, 8, 9]]], np.int32).reshape(2, 1, 2, 3)
    assert not policies.sets_differ(truth[..., ::-1], truth).any()
    other = truth.copy()
    other[1, 0, 0, 1] = 6
    differ = policies.sets_differ(other, truth)
    assert differ.tolist() == [[[0, 0]], [[1, 0]]]
    seen_by = (Span(4, 8), Span(8, 12))
    result = policies.Result(np.zeros((1, 12, 1, 1), np.float32), truth, seen_by, 0, 0)
    same = policies.same_sets(differ, result)
    assert same.tolist() == [[True] * 8 + [False] * 4]


def test_policies_on_random_tensors_agree_with_the_cpu(
    emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from h2o_runtime.devices.cuda import CudaDevice

    cases = policies.cases(chunk=64, n=150, head_sizes=(32,))
    assert {(case.name, case.dtype) for case in cases} >= {("full", "float16"), ("window", "float32")}
    gpu = CudaDevice()
    for case in cases:
        row = policies.compare(case, gpu, query_heads=4, kv_heads=2)
        assert row["same"], row
        assert row["host_us_a_chunk"] > 0
        assert case.name == "full" or row["sets_differ"] == 0
    # An output that is off is found.
    good = policies.Drive.run

    def bad(self: Any, *arguments: Any) -> Any:
        result = good(self, *arguments)
        return replace(result, o=result.o * np.float32(1.01)) if self.device is gpu else result

    monkeypatch.setattr(policies.Drive, "run", bad)
    assert not policies.compare(cases[0], gpu, query_heads=4, kv_heads=2)["same"]


def test_prefill_times_are_of_every_policy(
    emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prefill_times, "HEAD_SIZES", (32,))
    monkeypatch.setattr(prefill_times, "LENGTHS", (130,))
    monkeypatch.setattr(prefill_times, "HEADS", (4, 2))
    monkeypatch.setattr(sys, "argv", ["prefill_times.py", str(tmp_path / "rows.jsonl")])
    assert prefill_times.main() == 0
    rows = report.tables(tmp_path)["prefill"]
    assert [row["policy"] for row in rows] == list(prefill_times.POLICIES)
    assert all(row["ms"] >= row["host_ms"] > 0 for row in rows)
    assert rows[0]["speedup"] == 1


@pytest.mark.parametrize("part", parts.PARTS)
def test_parts_of_the_runtime(
    part: str, tiny_bundle: Path, emulated_cuda: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")
    monkeypatch.setattr(parts, "REPEATED", 70)
    count = 24 if part == "lookup" else 6  # the answer must repeat itself before drafts come
    row = parts.compared(part, tiny_bundle, "cuda", n=150, count=count)
    assert parts.as_on_the_cpu(row), row
    assert row["tokens"] == count
    assert not parts.as_on_the_cpu(row | {"tokens_equal": count - 1})


def test_a_perplexity_is_that_of_the_cpu(tiny_bundle: Path) -> None:
    row = parts.perplexities(tiny_bundle, "cpu", 60)
    assert row["n"] == 60
    assert 1 < row["perplexity"] < 1e6
    assert parts.as_on_the_cpu(row)
    assert not parts.as_on_the_cpu(row | {"perplexity": 1.01 * row["on_cpu"]})


def test_steps_of_several_rows_have_the_logits_of_the_cpu(
    tmp_path: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundles.named(shared_folder, "qwen2-g4-d32", "-half-int4", weights="int4", dtype="float16")[1]
    arguments = ["", str(folder), str(tmp_path / "rows.jsonl"), "--device", "cpu", "-n", "40"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert model_rows.main() == 0
    rows = report.tables(tmp_path)["model_rows"]
    assert [row["rows"] for row in rows] == [1, 2, 4, 8, 16]
    assert all(row["ms"] > 0 and row["tokens_equal"] <= row["rows"] for row in rows)
    one_by_one = model_rows.one_by_one
    monkeypatch.setattr(model_rows, "one_by_one", lambda *given: 2 * one_by_one(*given))
    assert model_rows.main() == 1


def test_four_requests_are_answered_as_one_by_one(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(four_requests, "CONTEXT", 1024)
    arguments = ["", str(tmp_path), str(tiny_bundle), str(tmp_path / "rows.jsonl")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--device", "cpu", "--tokens", "4"])
    monkeypatch.chdir(REPO)
    assert four_requests.main() == 0
    (row,) = report.tables(tmp_path)["requests"]
    assert row["texts_equal"]
    assert row["requests"] == 4


@pytest.mark.slow
def test_a_random_model_is_written_again_if_that_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from bench.gpu_check import model_times

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    sizes, checkpoint = model_times.Sizes("cpu", (30,), shape=SMALL), tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(model_times.shutil, "copy", killed)
        with pytest.raises(KeyboardInterrupt):
            model_times.write(sizes, TOKENIZER, checkpoint)
    assert not checkpoint.exists()
    model_times.write(sizes, TOKENIZER, checkpoint)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in checkpoint.iterdir()
    }


@pytest.mark.slow
def test_a_random_model_is_timed_beside_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails stops no other. It has a process of its own; the others would import torch six times."""
    pytest.importorskip("transformers")
    from bench.gpu_check import model_times

    start = model_times.start

    def start_here(work: Callable[..., None], *arguments: Any) -> Any:
        if arguments[-1] == "int8":
            return start(work, *arguments)
        work(*arguments)
        return SimpleNamespace(join=lambda: None, exitcode=0)

    monkeypatch.setattr(model_times, "start", start_here)
    sizes = model_times.Sizes("cpu", (30, 60), long=40, decode=(20, 50), tokens=4, shape=SMALL)
    (tmp_path / "bundle-int8").mkdir()
    (tmp_path / "bundle-int8" / "manifest.json").write_text("broken")
    assert model_times.measure(sizes, TOKENIZER, tmp_path, tmp_path / "rows.jsonl") == 1
    found = report.tables(tmp_path)
    weights = [(row["weights"], row["n"], "first_token_ms" in row) for row in found["weights"]]
    assert weights == [(name, n, n == 20) for name in ("float16", "int4") for n in (20, 50)]
    assert all(len(row["tokens"]) == 4 and row["tokens_per_s"] > 0 for row in found["weights"])
    assert [(row["model"], row["n"]) for row in found["model"]] == [
        *((name, 30) for name in ("full", "default", "h2o", "colsum", "window")),
        *((name, 60) for name in sizes.of_long),
        *(("transformers", n) for n in (30, 60)),
    ]
    assert all(row["first_token_ms"] > 0 for row in found["model"])


@pytest.mark.parametrize("latent", [False, True])
def test_a_bundle_end_to_end(
    latent: bool,
    tiny_bundle: Path,
    shared_folder: Path,
    emulated_cuda: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Greedy tokens with CUDA attention equal those on the CPU."""
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")
    small = Query(chunk_size=64, batch_size=128, local=16, heavy=16)
    assert set(end_to_end.policies(small)) == {"full", "as exported", "colsum", "window"}
    monkeypatch.setattr(
        end_to_end, "policies", lambda bundle: {"colsum": small, "full": altered(small, policy="full")}
    )
    bundle = latent_models.golden_bundle(shared_folder, latent_models.MODELS[0]) if latent else tiny_bundle
    rows = end_to_end.compare(bundle, "onnxruntime", n=150, steps=4)
    assert [row["policy"] for row in rows] == ["colsum", "full"]
    for row in rows:
        assert row["tokens_equal"]
        assert row["runs_identical"]
        assert row["error"] < 1e-5
        assert (row["set_rows_that_differ"], row["first_in"]) == (0, "")
    found, other = np.arange(24, dtype=np.int32).reshape(2, 1, 3, 4), np.arange(24, dtype=np.int32)
    other[21] = 99
    assert end_to_end.other_sets(found, other.reshape(found.shape)) == {
        "set_rows_that_differ": 1, "first_in": "1, 0, 2"
    }  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["end_to_end.py", str(tiny_bundle), "--backend", "tensorrt"])
    assert end_to_end.main() == 77
    assert "TensorRT is not installed" in capsys.readouterr().out.splitlines()[-1]
