"""Everything that needs a GPU, in one command: python -m bench.gpu_check.run --out FOLDER

Builds the kernels for this GPU, runs their tests, and times them against torch's flash attention. Compares
policies and whole bundles with the CPU, and runs the tests again under compute-sanitizer. The most valuable
steps come first. Each step is a process with a time limit: a step that fails or hangs stops no other, and one
that lacks something is "not run". FOLDER gets results at once, in four files: report.md, report.json,
rows.jsonl with the timings, and log.txt with all output. The build is in another folder.

Exit code 0: all passed, or nothing could run; 1: a check failed; 3: a speed goal was missed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from bench.gpu_check import machine
from bench.gpu_check import report as reports
from bench.gpu_check.plan import INTEGERS, REPO, Options, steps
from bench.gpu_check.steps import FAILED, Outcome, Runner

LIMIT = 600.0  # seconds for all steps; a larger value, for a slow machine, gives every step more
READY_LIMIT = 300.0  # where nothing is compiled


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=REPO / "out" / "gpu_check", help="where all results go")
    parser.add_argument("--build", type=Path, default=REPO / "build" / "gpu_check", help="build folder")
    parser.add_argument(
        "--wheels", type=Path, help="folder that prepare.sh made, for machines without an index"
    )
    parser.add_argument("--tensorrt", type=Path, help="folder with TensorRT's headers")
    parser.add_argument(
        "--architecture", help="such as 90; found by itself. Builds even where there is no GPU"
    )
    parser.add_argument("--bundle", type=Path, default=REPO / "out" / "tiny-llama", help="run end to end")
    parser.add_argument(
        "--latent", type=Path, default=REPO / "out" / "tiny-latent", help="the same with latent attention"
    )
    parser.add_argument(
        "--trained", type=Path, default=REPO / "out" / "smollm2-int8", help="whose perplexity is the CPU's"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="run the parts of the runtime on the CPU, where there is no GPU",
    )
    parser.add_argument(
        "--limit",
        type=float,
        help=f"seconds that all steps may take together, {LIMIT:g} by default; their own limits grow with it",
    )
    parser.add_argument(
        "--ready",
        action="store_true",
        help=f"the build folder holds an earlier build: nothing is compiled, in {READY_LIMIT:g} seconds",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--quick", action="store_true", help="no full tests, and of the sanitizers memcheck alone"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="steps whose names it matches, and those that build"
    )
    return parser.parse_args()


def main() -> int:
    begin = time.monotonic()
    asked = arguments()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("log.txt", "rows.jsonl"):
        (out / name).write_text("")
    gpu = machine.first_gpu()
    options = Options(
        build=asked.build.resolve(),
        rows=out / "rows.jsonl",
        architecture=asked.architecture or (gpu.architecture if gpu else None),
        gpu=gpu is not None,
        wheels=asked.wheels.resolve() if asked.wheels else None,
        tensorrt=asked.tensorrt.resolve() if asked.tensorrt else None,
        bundles={
            "bundle": asked.bundle.resolve(),
            "latent": asked.latent.resolve(),
            "trained": asked.trained.resolve(),
            **{kind: REPO / "out" / f"tiny-llama-{kind}" for kind in INTEGERS},
        },
        jobs=asked.jobs,
        quick=asked.quick,
        ready=asked.ready,
        rehearse=asked.rehearse,
    )
    limit = asked.limit or (READY_LIMIT if asked.ready else LIMIT)
    wanted = re.compile(f"configure|build|unpack|{asked.only}")
    facts = machine.facts(gpu, ["python", "-m", "bench.gpu_check.run", *sys.argv[1:]])

    def tell(outcomes: list[Outcome]) -> None:
        last = outcomes[-1]
        print(f"{last.check}: {last.result} {last.why} ({last.seconds} s)", flush=True)
        reports.write(facts, [asdict(each) for each in outcomes], out)

    slow = max(limit / LIMIT, 1)
    plan = [replace(step, limit=slow * step.limit) for step in steps(options) if wanted.match(step.name)]
    outcomes = Runner(out / "log.txt", begin + limit, tell).run(plan)
    print((out / "report.md").read_text())
    if any(outcome.result == FAILED for outcome in outcomes):
        return 1
    return 3 if reports.missed_goals(reports.tables(out)) else 0


if __name__ == "__main__":
    sys.exit(main())
