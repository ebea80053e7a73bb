"""Checks and times on the GPU of this machine: python -m bench.gpu_check.run --kit KIT --out FOLDER [STEP …]

h2o-edge must be installed with its CUDA kernels; prepare.sh made KIT. All steps run, the most valuable first, or
only those that are named. Each is a process with a time limit: one that fails or hangs stops no other. What STEP
prints, mostly lines of JSON, goes to FOLDER/STEP.txt. FOLDER/run.jsonl gets the machine, versions and commit, and
then how each step ended.

Exit code 0: nothing failed; 1: a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from bench.gpu_check.rows import NOT_HERE, Row

from h2o_plugins import cuda_kernels

REPO = Path(__file__).resolve().parents[2]
RESULTS = {0: "passed", NOT_HERE: "not run"}
PACKAGES = ("h2o-edge", "numpy", "onnxruntime", "onnxruntime-gpu", "torch", "transformers")
MODEL = "llama-3.2-1b"  # a shape of h2o-bench, with random weights
MODELS = {
    "attention": ("--lengths", "4096,8192,16384,32768", "--peers", "torch SDPA"),
    "prefill": ("--lengths", "4096,8192,16384,32768,65536,131072", "--peers", "transformers"),
    "decode": ("--lengths", "4096,32768", "--peers", "transformers"),
}
BESIDE = ("h2o score=colsum", "h2o score=window")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="by default all of them")
    parser.add_argument("--kit", type=Path, required=True, help="folder with bundles, and the tests' program")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearses the bundles"
    )
    parser.add_argument("--tokens", type=int, default=4000, help="of the prompt that bundles read")
    parser.add_argument("--limit", type=float, default=240, help="seconds of a step")
    return parser.parse_args()


def steps(kit: Path, out: Path, device: str, tokens: int) -> dict[str, list[str]]:
    """Commands by name."""

    def module(name: str, *words: object) -> list[str]:
        return [sys.executable, "-m", name, *map(str, words)]

    bundles = sorted(manifest.parent for manifest in kit.glob("*/manifest.json"))
    check = "bench.gpu_check.bundles"
    found = {bundle.name: module(check, bundle, device, tokens) for bundle in bundles}
    if device == "cpu":
        return found
    common = ("--device", device, "--dtype", "float16", "--repetitions", 3, "--work-dir", out / "models")
    found = {"tests": [str(kit / "h2o_cuda_test"), "--small"], **found}
    found["plugins"] = [str(kit / "h2o_trt_conformance"), str(kit / "libh2o_trt_plugins.so")]
    found |= {name: module("bench.gpu_check." + name) for name in ("layers", "kernels")}
    for name, flags in MODELS.items():
        beside = [word for policy in BESIDE for word in ("--beside", policy)] if name != "decode" else []
        found[name] = module("h2o_cli.bench", name, MODEL, "--json", *common, *flags, *beside)
    return found


def run(command: list[str], output: Path, limit: float) -> str:
    """→ what came of it."""
    with output.open("w") as file:
        try:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=REPO, start_new_session=True
            )
        except OSError as error:
            return f"not run: {error}"
        try:
            code = process.wait(limit)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"failed: not done after {limit:g} s"
    return RESULTS.get(code, f"failed: exit code {code}")


def facts(kit: Path) -> Row:
    """Of the machine, the code and the command."""
    module, commit = cuda_kernels(), kit / "commit"
    gpu = module.device_name() if module is not None and module.device_count() else "none"
    driver = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "gpu": gpu,
        "driver": _output(*driver) if gpu != "none" else "",
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
        "commit": commit.read_text().strip() if commit.exists() else _output("git", "rev-parse", "HEAD"),
        "date": time.strftime("%Y-%m-%d"),
        "command": sys.argv[1:],
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO).stdout.strip()
    except OSError:
        return ""


def main() -> int:
    asked = arguments()
    kit, out = asked.kit.resolve(), asked.out.resolve()
    known = steps(kit, out, asked.device, asked.tokens)
    if unknown := set(asked.steps) - set(known):
        raise SystemExit(f"no such step: {', '.join(sorted(unknown))}. There are: {', '.join(known)}")
    out.mkdir(parents=True, exist_ok=True)
    failed = False
    with (out / "run.jsonl").open("a") as file:
        print(json.dumps(facts(kit)), file=file, flush=True)
        for name in asked.steps or known:
            begin = time.monotonic()
            result = run(known[name], out / f"{name}.txt", asked.limit)
            row = {"step": name, "result": result, "seconds": round(time.monotonic() - begin, 1)}
            failed |= result.startswith("failed")
            for place in (file, sys.stdout):
                print(json.dumps(row), file=place, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
