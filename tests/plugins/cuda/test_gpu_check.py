"""bench/gpu_check without a GPU: its steps on the emulation and on the CPU, and that none stops another."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bench.gpu_check import bundles, kernels, layers, rows, run

from h2o_cli.bench import command
from h2o_runtime.devices.cuda import CudaDevice
from h2o_runtime.policies.prefill import Query

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, emulated_cuda: ModuleType) -> None:
    monkeypatch.setenv("H2O_EMULATION_EAGER", "1")


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_a_broken_step_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = "import subprocess, sys; print('waiting', flush=True); subprocess.run(['sleep', '60'])"
    steps = {
        "raises": python("print('begun'); raise ValueError('wrong')"),
        "hangs": python(hangs),
        "crashes": python("import os; os.abort()"),
        "not there": [str(tmp_path / "no such program")],
        "cannot run": python(f"raise SystemExit({rows.NOT_HERE})"),
        "good": python("print('done')"),
    }
    monkeypatch.setattr(run, "steps", lambda *_: steps)
    flags = ["run.py", "--kit", str(tmp_path), "--out", str(tmp_path / "out"), "--limit", "4"]
    monkeypatch.setattr(sys, "argv", flags)
    (tmp_path / "commit").write_text("0123abc\n")
    begin = time.monotonic()
    assert run.main() == 1
    assert time.monotonic() - begin < 40
    machine, *ends = map(json.loads, (tmp_path / "out" / "run.jsonl").read_text().splitlines())
    assert (machine["commit"], machine["command"]) == ("0123abc", flags[1:])
    assert {end["step"]: end["result"] for end in ends} == {
        "raises": "failed: exit code 1",
        "hangs": "failed: not done after 4 s",
        "crashes": "failed: exit code -6",
        "not there": f"not run: [Errno 2] No such file or directory: '{tmp_path / 'no such program'}'",
        "cannot run": "not run",
        "good": "passed",
    }
    assert (tmp_path / "out" / "hangs.txt").read_text() == "waiting\n"
    assert "ValueError: wrong" in (tmp_path / "out" / "raises.txt").read_text()
    monkeypatch.setattr(sys, "argv", [*flags, "good"])
    assert run.main() == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == "good"
    monkeypatch.setattr(sys, "argv", [*flags, "better"])
    with pytest.raises(SystemExit, match="no such step: better"):
        run.main()


@pytest.mark.slow
def test_a_bundle_is_compared_with_itself(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only step of a rehearsal, with a shorter answer and fewer steps."""
    monkeypatch.setattr(bundles, "COUNT", 6)
    monkeypatch.setattr(bundles, "REPEATS", 2)
    found = list(bundles.checks(tiny_bundle, "cpu", 150))
    assert all(row["same"] for row in found if row.get("way") != "lookup")  # which drafts later
    assert {row.get("way") for row in found} == {None, "lookup", "quest"}


def test_commands_of_steps_are_real(tmp_path: Path, tiny_bundle: Path) -> None:
    (tmp_path / "tiny").symlink_to(tiny_bundle)
    steps = run.steps(tmp_path, tmp_path, "cuda", 300)
    assert list(run.steps(tmp_path, tmp_path, "cpu", 300)) == ["tiny"]
    assert list(steps) == [
        "tests", "tiny", "plugins", "layers", "kernels", "attention", "prefill", "decode"
    ]  # fmt: skip
    for name in run.MODELS:
        _, _, module, asked, *words = steps[name]
        assert (module, asked) == ("h2o_cli.bench", name)
        context = command.main.commands[name].make_context(name, words)
        assert context.params["device"] == "cuda"


def test_what_exporting_needs_is_collected() -> None:
    """Beside torch and transformers, and what these bring."""
    script = (REPO / "bench" / "gpu_check" / "prepare.sh").read_text()
    source = script.partition('wanted=$("$python" -c \'')[2].partition("')")[0]
    done = subprocess.run(python(source), capture_output=True, text=True, check=True)
    collected = {name_of(line) for line in done.stdout.splitlines()}
    needed = {name_of(line) for line in requires("h2o-edge") or () if 'extra == "export"' in line}
    assert needed - collected == {"torch", "transformers", "safetensors"}
    assert {"fastapi", "onnx", "rich"} <= collected
    assert "matplotlib" not in collected, "of another extra"


def name_of(requirement: str) -> str:
    return re.split(r"[^\w-]", requirement)[0]


POLICIES = {("full", "float16"), ("query", "float32")}


def test_policies_on_random_tensors_agree_with_the_cpu(
    emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full attention and the policy by default, in one kind of numbers each."""
    for name, value in {"CHUNK": 32, "HEADS": (4, 2), "HEAD_SIZES": (32,)}.items():
        monkeypatch.setattr(layers, name, value)
    some = [case for case in layers.cases() if (case.name, case.dtype) in POLICIES]
    monkeypatch.setattr(layers, "cases", lambda: some)
    found = list(layers.checks())
    assert {(row["policy"], row["dtype"]) for row in found} == POLICIES
    for row in found:
        assert row["same"], row
        assert row["sets_differ"] == 0
    # An output that is off is found.
    good = layers.attend

    def bad(case: layers.Case, device: Any, provider: Any) -> layers.Result:
        result = good(case, device, provider)
        return result if device.name == "cpu" else replace(result, o=result.o * np.float32(1.01))

    monkeypatch.setattr(layers, "attend", bad)
    assert not layers.compare(some[0], CudaDevice())["same"]


def test_what_differs_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.tell(lambda: [{"same": True}, {"ms": 1.0}]) == 0
    assert rows.tell(lambda: [{"same": True}, {"same": False}, {"same": True}]) == 1
    assert rows.tell(lambda: bundles.checks(REPO / "nowhere", "cpu", 9)) == rows.NOT_HERE
    assert str(REPO / "nowhere") in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_what_is_timed_runs(eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a wrong argument would be found out when the time is already spent."""
    rule = {"chunk_size": 64, "batch_size": 64, "tile": 16, "local": 8, "heavy": 8, "queries": 4}
    sizes = {
        "QUERY_HEADS": 4, "KV_HEADS": 2, "HEAD_SIZES": (64,), "LATENT_HEADS": (4,),
        "PROMPT": 256, "CHUNK": 64, "TAIL": 16, "SLOTS": 16, "CACHED": (64,), "ROWS": (1, 2),
        "KINDS": {"window": {"window": 50}, "cap": {"softcap": 50.0}},
        "RULE": Query(**rule, candidates=64, grow="never"),
    }  # fmt: skip
    for name, size in sizes.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(kernels, "milliseconds", lambda device, work: work() or 1.0)
    device = CudaDevice()
    found = {row["call"]: row for row in kernels.times(device)}
    assert set(found) >= {"phase 1", "candidates", "tiles", "full", "step of 2 rows", "attention to pages"}
    assert all(row["ms"] == 1 for row in found.values())
    assert all("gb_s" in found[f"step of {count} rows"] for count in (1, 2))
    layer = kernels.Layer(device, 256, 64, (4, 2))
    q, o = layer.queries(256)
    for work, _ in kernels.choosing(layer, q, o).values():
        work()
    assert np.isfinite(device.download(o[192:])).all()
