"""bench/gpu_check without a GPU: what it says then, and that no step stops another."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from bench.gpu_check import (
    library,
    machine,
    plan,
    report,
    steps,
)

REPO = Path(__file__).resolve().parents[3]


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"bench.gpu_check.{name}", *map(str, arguments)]


def started(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """In a folder that is not the checkout, so that a file written there is seen."""
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_without_a_gpu_every_step_says_so_within_seconds(tmp_path: Path) -> None:
    if machine.first_gpu():
        pytest.skip("this machine has a GPU")
    begin = time.monotonic()
    done = started(command("run", "--out", tmp_path / "out", "--wheels", tmp_path), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - begin < 20
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["machine"]["gpu"] == "none"
    names = [check["check"] for check in written["checks"]]
    assert names[:5] == [
        "configure",
        "build kernels",
        "tests, small",
        "unpack wheels",
        "build modules",
    ]
    assert names[5] == "runtime, plain", "what a user runs comes before times"
    assert {
        "build kernels",
        "conformance",
        "tests, full",
        "sanitizer, racecheck",
        "end to end, latents",
    } < set(names)
    assert {(check["result"], check["why"]) for check in written["checks"]} == {("not run", "no GPU")}
    assert "not measured: phase1.plain_of_flash" in (tmp_path / "out" / "report.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "log.txt", "report.json", "report.md", "rows.jsonl"
    }  # fmt: skip


@pytest.mark.parametrize("ready", [False, True])
def test_only_some_steps_run(tmp_path: Path, ready: bool) -> None:
    """Nothing is compiled where the build folder is ready."""
    some = ["--only", "policies|conformance", *(["--ready"] if ready else [])]
    done = started(command("run", "--out", tmp_path / "out", *some), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    names = [
        "configure", "build kernels", "unpack wheels", "build modules", "policies", "build plugins", "conformance",
    ]  # fmt: skip
    expected = [name for name in names if not (ready and name.startswith(("configure", "build")))]
    assert [check["check"] for check in written["checks"]] == expected


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_a_broken_step_stops_no_other(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {"table": "flash", "head_size": 64, "tflop_s": 400.0}
    write = f"open({str(rows)!r}, 'a').write({json.dumps(row)!r} + chr(10))"

    def breaks() -> list[str]:
        raise ZeroDivisionError("while it was prepared")

    def lacks() -> list[str]:
        raise steps.NotRun("nanobind is not installed")

    hangs = "import subprocess, sys; print('waiting'); sys.stdout.flush(); subprocess.run(['sleep', '60'])"
    broken = [
        steps.Step("raises", lambda: python("print('begun'); raise ValueError('wrong')"), 20),
        steps.Step("breaks", breaks, 20),
        steps.Step("hangs", lambda: python(f"{write}; {hangs}"), 4),
        steps.Step("crashes", lambda: python("import os; os.abort()"), 20),
        steps.Step("not there", lambda: [str(tmp_path / "no such program")], 20),
        steps.Step("lacks", lacks, 20),
        steps.Step(
            "cannot run", lambda: python("import sys; print('torch is not installed'); sys.exit(77)"), 20
        ),
        steps.Step(
            "refused",
            lambda: python("print('Device not supported'); raise SystemExit(1)"),
            20,
            (),
            plan.REFUSAL,
        ),
        steps.Step("after one that failed", lambda: python(""), 20, ("raises",)),
        steps.Step("after one that was not run", lambda: python(""), 20, ("lacks",)),
        steps.Step("good", lambda: python("print('done')"), 20),
    ]
    told = []

    def tell(outcomes: list[Any]) -> None:
        told.append(len(outcomes))
        report.write({"gpu": "a GPU"}, [vars(outcome) for outcome in outcomes], tmp_path)

    runner = steps.Runner(tmp_path / "log.txt", time.monotonic() + 60, tell)
    begin = time.monotonic()
    outcomes = {outcome.check: (outcome.result, outcome.why) for outcome in runner.run(broken)}
    assert time.monotonic() - begin < 40
    assert outcomes == {
        "raises": ("failed", "exit code 1: ValueError: wrong"),
        "breaks": ("failed", "ZeroDivisionError: while it was prepared"),
        "hangs": ("failed", "not done after 4 s"),
        "crashes": ("failed", "ended by SIGABRT: it printed nothing"),
        "not there": ("failed", outcomes["not there"][1]),
        "lacks": ("not run", "nanobind is not installed"),
        "cannot run": ("not run", "torch is not installed"),
        "refused": ("not run", "Device not supported"),
        "after one that failed": ("not run", "raises failed"),
        "after one that was not run": ("not run", "nanobind is not installed"),
        "good": ("passed", ""),
    }
    assert "FileNotFoundError" in outcomes["not there"][1]
    assert told == list(range(1, len(broken) + 1))
    written = json.loads((tmp_path / "report.json").read_text())
    assert [check["check"] for check in written["checks"]] == list(outcomes)
    assert written["tables"]["flash"] == [{"head_size": 64, "tflop_s": 400.0}], "what a step measured is kept"
    assert all(name in (tmp_path / "report.md").read_text() for name in outcomes)
    assert "begun" in (tmp_path / "log.txt").read_text()


def test_steps_for_which_no_time_is_left_are_not_run(tmp_path: Path) -> None:
    sleeps = steps.Step("sleeps", lambda: python("import time; time.sleep(60)"), 60)
    begin = time.monotonic()
    outcomes = steps.Runner(tmp_path / "log.txt", begin + 3).run([sleeps, replace(sleeps, name="later")])
    assert time.monotonic() - begin < 20
    assert [outcome.result for outcome in outcomes] == ["failed", "not run"]
    assert outcomes[1].why == "no time was left"


def test_a_missing_package_is_not_a_failure(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import numpy, no_such_package")
    launch = command("launch", tmp_path, "needy")
    done = started(launch, tmp_path)
    assert (done.returncode, done.stdout) == (steps.NOT_HERE, "no_such_package is not installed\n")
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "no_such_package.py").write_text("print('of the wheels')")
    done = started(launch, tmp_path)
    assert (done.returncode, done.stdout) == (0, "of the wheels\n")


def test_wheels_are_unpacked_without_an_index(tmp_path: Path) -> None:
    wheels, options = tmp_path / "wheels", options_in(tmp_path)
    with pytest.raises(steps.NotRun, match="no --wheels"):
        plan.unpack(options)
    wheels.mkdir()
    with pytest.raises(steps.NotRun, match="no wheels in"):
        plan.unpack(replace(options, wheels=wheels))
    make_wheel(wheels)
    unpack = plan.unpack(replace(options, wheels=wheels))
    done = subprocess.run(unpack, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build" / "wheels" / "tiny_wheel.py").read_text() == "here = True\n"
    (wheels / "bundle").mkdir()
    (wheels / "bundle" / "manifest.json").write_text("{}")
    assert plan.bundle(replace(options, wheels=wheels), "bundle") == wheels / "bundle"
    with pytest.raises(steps.NotRun, match="there is no bundle"):
        plan.bundle(replace(options, wheels=wheels), "latent")


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


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.shutil, "which", lambda name: None)
    for command, why in ((plan.profiler, "ncu"), (lambda: plan.sanitizer("memcheck"), "compute-sanitizer")):
        with pytest.raises(steps.NotRun, match=f"{why} is not installed"):
            command()
    monkeypatch.setattr(plan, "has", lambda package: True)
    monkeypatch.setattr(plan.sysconfig, "get_path", lambda name: "/no/such/folder")
    with pytest.raises(steps.NotRun, match="Python's headers are not installed"):
        plan.modules()


def test_programs_of_a_build_that_moved_find_their_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.shutil, "which", lambda name: name)
    assert "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON" in plan.configure(options_in(tmp_path))


def options_in(folder: Path) -> plan.Options:
    return plan.Options(
        build=folder / "build", rows=folder / "rows", architecture="90", gpu=True, wheels=None, tensorrt=None,
        bundles={"bundle": folder / "none", "latent": folder / "none"}, jobs=1, quick=False,
    )  # fmt: skip


def make_wheel(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "tiny_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_wheel.py", "here = True\n")
        info = "tiny_wheel-1.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_it_reads_the_c_interface_from_the_headers() -> None:
    """ctypes checks nothing: an argument too many or too few, or a field too short, would be a crash on the GPU."""
    declared = library.declarations()
    header = (REPO / "tests" / "plugins" / "cuda" / "calls.h").read_text()
    assert len(declared.functions) == header.count("\nH2O_CALL ")
    structures = declared.structures
    assert {name: ctypes.sizeof(structure) for name, structure in structures.items()} == {
        "h2o_kv": 64,
        "h2o_shape": 36,
        "h2o_cuda_state": 24,
        "h2o_cuda_next_memory": 32,
        "h2o_subquadratic": 24,
    }
    result, arguments = declared.functions["cached_attention"]
    shape, kv = (ctypes.POINTER(structures[name]) for name in ("h2o_shape", "h2o_kv"))
    pointer = ctypes.c_void_p
    assert result is ctypes.c_int32
    assert arguments == [
        pointer, shape, ctypes.c_int32, pointer, kv, pointer, pointer, pointer, ctypes.c_size_t,
    ]  # fmt: skip


def test_goals_are_shares_of_flash_attention_in_the_same_run(tmp_path: Path) -> None:
    rows = [
        {"table": "ceilings", "copy_gb_s": 1000.0, "matmul_tflop_s": 700.0},
        {"table": "flash", "head_size": 64, "tflop_s": 400.0},
        {"table": "phase1", "head_size": 64, "plain_tflop_s": 300.0, "scored_tflop_s": 100.0},
        {"table": "phase1", "head_size": 128, "plain_tflop_s": 300.0, "scored_tflop_s": 100.0},
        {"table": "phase2", "head_size": 64, "fused_tflop_s": 220.0, "gather_gb_s": 450.0},
        {"table": "layer", "head_size": 64, "n": 4096, "h2o_tflop_s": 90.0, "window_tflop_s": 90.0},
        {"table": "layer", "head_size": 64, "n": 16384, "h2o_tflop_s": 200.0, "window_tflop_s": 90.0},
        {"table": "repeatable", "same": False},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text + '{"table": "layer", "head_si')
    found = report.tables(tmp_path)
    assert found["phase1"][0]["plain_of_flash"] == 0.75
    assert "plain_of_flash" not in found["phase1"][1], "nothing to compare with was measured"
    assert [line.split(":")[0] for line in report.missed_goals(found)] == [
        "scored_of_flash at head_size 64",
        "gather_of_copy at head_size 64",
        "window_of_flash at head_size 64, n 16384",
        "two runs of the same prefill differ",
    ]
    assert report.unmeasured(found) == ["decode.of_copy", "decode.step_of_copy"]
    report.write({"gpu": "none"}, [{"check": "tests", "result": "passed"}], tmp_path)
    written = (tmp_path / "report.md").read_text()
    assert all(f"missed: {line}" in written for line in report.missed_goals(found))


def test_a_rehearsal_runs_on_the_cpu(tmp_path: Path, tiny_bundle: Path) -> None:
    """The parts of the runtime, from the command on; what is missing is named."""
    some = ["--rehearse", "--only", "runtime, (quest|trained)|policies", "--bundle", tiny_bundle]
    done = started(command("run", "--out", tmp_path / "out", "--trained", tmp_path, *some), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    results = {check["check"]: (check["result"], check["why"]) for check in written["checks"]}
    assert results["runtime, quest"] == ("passed", "")
    assert results["runtime, trained"][1].startswith("there is no bundle")
    assert results["policies"] == ("not run", "no GPU")
    assert [row["part"] for row in written["tables"]["parts"]] == ["quest"]
