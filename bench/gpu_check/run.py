"""Everything that needs a GPU, in one command: python bench/gpu_check/run.py

Builds the kernels and plugins for the GPU that is there, runs their tests, runs the kernels again under
compute-sanitizer, runs a bundle end to end on every backend that is installed, times the kernels beside torch
(where torch with CUDA is installed), and writes report.md and report.json.
Exit code 0: all good; 1: a check failed; 3: a speed goal was missed.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report as reports

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
KERNELS = Path("plugins", "kernels", "cuda")
SANITIZERS = ("memcheck", "racecheck")
BACKENDS = ("onnxruntime", "tensorrt", "tensorrt-rtx")
NOT_HERE = 2  # exit code of end_to_end.py where a backend cannot run


def run(command: list[str], log: Path) -> tuple[int, float]:
    """Runs a command into a log file; its exit code and its seconds."""
    print("+", " ".join(command), flush=True)
    begin = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        print("".join(log.read_text().splitlines(keepends=True)[-40:]), flush=True)
    return code, time.monotonic() - begin


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def gpu_says(what: str) -> str:
    """One property of the first GPU, as nvidia-smi names it."""
    return output_of("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader").partition("\n")[0].strip()


def machine() -> dict[str, Any]:
    nvcc = output_of("nvcc", "--version").splitlines()
    try:
        import torch

        torch_version = torch.__version__
    except ImportError:
        torch_version = "not installed"
    return {
        "gpu and driver": gpu_says("name,driver_version"),
        "nvcc": nvcc[-2] if len(nvcc) > 1 else "unknown",
        "torch": torch_version,
        "cpu": platform.machine(),
        "commit": output_of("git", "-C", str(REPO), "rev-parse", "--short", "HEAD"),
        "command": " ".join(["python", *sys.argv]),
    }


def native_architecture() -> str | None:
    """Compute capability of the first GPU, such as 90."""
    try:
        import torch

        major, minor = torch.cuda.get_device_capability()
        return f"{major}{minor}"
    except (ImportError, AssertionError, RuntimeError):
        digits = gpu_says("compute_cap").replace(".", "")
        return digits if digits.isdigit() else None


def build(folder: Path, architecture: str, jobs: int, tensorrt: str | None) -> bool:
    options = [f"-DH2O_CUDA_ARCHITECTURES={architecture}", "-DH2O_PYTHON=OFF"]
    options += [f"-D{name}=ON" for name in ("H2O_CUDA", "H2O_CUDA_TESTS", "H2O_TENSORRT")]
    options += [f"-DTensorRT_ROOT={tensorrt}"] if tensorrt else []
    folder.mkdir(parents=True, exist_ok=True)
    configured, _ = run(["cmake", "-S", str(REPO), "-B", str(folder), *options], folder / "configure.log")
    if configured != 0:
        return False
    return run(["cmake", "--build", str(folder), f"-j{jobs}"], folder / "build.log")[0] == 0


def checks(folder: Path, quick: bool) -> list[dict[str, Any]]:
    test = folder / KERNELS / "tests" / "h2o_cuda_test"
    plugins = folder / "plugins" / "tensorrt"
    rows = []

    def check(name: str, command: list[str]) -> None:
        code, seconds = run(command, folder / f"{name}.log")
        rows.append({"check": name, "passed": code == 0, "seconds": round(seconds, 1)})

    check("tests", [str(test), *(["--small"] if quick else [])])
    if (plugins / "h2o_trt_conformance").exists():
        check("plugins", [str(plugins / "h2o_trt_conformance"), str(plugins / "libh2o_trt_plugins.so")])
    else:
        rows.append({"check": "plugins", "passed": "not run: no TensorRT headers", "seconds": 0.0})
    sanitizer = shutil.which("compute-sanitizer")
    for tool in SANITIZERS:
        if sanitizer is None:
            rows.append({"check": tool, "passed": "not run: no compute-sanitizer on PATH", "seconds": 0.0})
        else:
            groups = ["attention", "candidate", "rows", "select"]
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9", str(test), "--small", *groups]
            check(tool, command)
    return rows


def end_to_end(folder: Path, bundle: Path) -> list[dict[str, Any]]:
    """One row a backend. The runtime must be installed with its CUDA kernels (docs/cuda.md)."""
    rows = []
    for backend in BACKENDS:
        log = folder / f"end-to-end-{backend}.log"
        code, seconds = run(
            [sys.executable, str(HERE / "end_to_end.py"), str(bundle), "--backend", backend], log
        )
        lines = log.read_text().splitlines()
        passed = f"not run: {lines[-1]}" if code == NOT_HERE and lines else code == 0
        rows.append({"check": f"end to end, {backend}", "passed": passed, "seconds": round(seconds, 1)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--build", type=Path, default=REPO / "build" / "gpu_check", help="build folder")
    parser.add_argument(
        "--out", type=Path, default=REPO / "build" / "gpu_check" / "report", help="report folder"
    )
    parser.add_argument("--architecture", default=native_architecture(), help="such as 90; found by itself")
    parser.add_argument("--tensorrt", help="folder with TensorRT's headers, where it is not found by itself")
    parser.add_argument(
        "--bundle",
        type=Path,
        default=REPO / "out" / "tiny-llama",
        help="what is run end to end; make demo makes it",
    )
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="the small list of shapes for the tests too")
    parser.add_argument("--no-timings", action="store_true")
    arguments = parser.parse_args()
    if arguments.architecture is None:
        parser.error("no GPU was found; name its compute capability with --architecture, such as 87 for Orin")

    if not build(arguments.build, arguments.architecture, arguments.jobs, arguments.tensorrt):
        print("The kernels did not build; the log above says why.", file=sys.stderr)
        return 1
    rows = checks(arguments.build, arguments.quick) + end_to_end(arguments.build, arguments.bundle)
    report: dict[str, Any] = {"machine": machine(), "checks": rows}
    reports.write({**report, "no_timings": "not reached"}, arguments.out)  # kept if a timing brings us down
    failed = [row["check"] for row in report["checks"] if row["passed"] is False]

    missed: list[str] = []
    if arguments.no_timings or failed:
        report["no_timings"] = f"{', '.join(failed)} failed" if failed else "not asked for"
    else:
        try:
            import timings
        except ImportError as error:
            report["no_timings"] = f"{error}. Install torch with CUDA to compare with its flash attention."
        else:
            report["timings"] = timings.all_timings(arguments.build / KERNELS / "libh2o_cuda.so")
            missed = reports.missed_goals(report["timings"])
    reports.write(report, arguments.out)
    print((arguments.out / "report.md").read_text())
    if failed:
        return 1
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
