"""Wheels as a user has them, run without a compiler: make wheel-smoke

    python -m tools.wheel_smoke --bundle out/tiny-llama-int8 dist/*-cp311-*.whl

pip installs the wheel, and what it and the tests need: for this machine's processor in a virtual environment, for
AArch64 in a folder for Debian's Python, which apt-get fetches and qemu-aarch64 runs (docs/wheels.md). Then the
quick tests of the kernels, h2o-run and examples/demo.py run there. No compiler is on the PATH, and nothing of the
environment that runs this program.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.wheels import ROOT, BuildError, run

PYTHON, PYTHON_TAG = "python3.11", "3.11"
TEST_PACKAGES = ("pytest", "hypothesis", "ml_dtypes")
# Of the tests of kernels, those that are quick under qemu too, and need no exporter.
TESTS = [ROOT / "tests" / "plugins" / f"test_native_{name}.py" for name in ("latent", "query", "stored")]
QUICK = ("-m", "not hypothesis", "-k", "not full_size and not places_change_no_bit")
DEMO, SHORT = ROOT / "examples" / "demo.py", ("--lengths", "1900", "--rounds", "1")
ANSWER = "48213"  # of the demo
COMPILERS = ("c++", "cc", "clang", "cmake", "g++", "gcc", "nvcc")
NO_COMPILER = f"import shutil, sys; sys.exit(' '.join(filter(shutil.which, {COMPILERS})) or 0)"
QEMU_VERSION = 10
# Of Debian, for a Python that is not this machine's.
SYSTEM = [
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
    "libexpat1",
    "libssl3",
    "libffi8",
    "libbz2-1.0",
    "liblzma5",
    "libsqlite3-0",
    "libuuid1",
]


@dataclass(frozen=True)
class Step:
    """One thing that has to run, as arguments of Python, and how often its output says `says`."""

    name: str
    arguments: Sequence[str | Path]
    says: str = ""
    times: int = 0


def native(wheel: Path, folder: Path) -> Path:
    """A program in `folder` that is the Python of a fresh virtual environment with the wheel."""
    need(PYTHON, f"install {PYTHON}, which the wheel is for")
    environment = folder / "environment"
    run([PYTHON, "-m", "venv", str(environment)])
    python = environment / "bin" / "python"
    pip_install([str(python)], wheel)
    return program(folder, f"PATH={environment}/bin", str(python))


def emulated(wheel: Path, folder: Path, qemu: str) -> Path:
    """A program in `folder` that is Debian's Python for AArch64 with the wheel."""
    need(PYTHON, f"install {PYTHON}, whose pip fetches the packages")
    check_qemu(qemu)
    check_debian()
    site, system = folder / "site", folder / "system"
    # What Debian 12 runs: pip takes wheels of these systems alone, not of earlier ones.
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(36, 16, -1)]
    platforms.append("--platform=manylinux2014_aarch64")
    where = ["--only-binary=:all:", "--python-version", PYTHON_TAG, "--target", str(site), *platforms]
    pip_install([PYTHON], wheel, *where)
    run(["apt-get", "download", "--quiet", *(f"{name}:arm64" for name in SYSTEM)], cwd=folder)
    for package in folder.glob("*.deb"):
        run(["dpkg", "-x", str(package), str(system)])
    output = program(
        folder, f"PATH=/nonexistent PYTHONPATH={site}", f"{qemu} -L {system} {system}/usr/bin/{PYTHON}"
    )
    # Processes that Python starts are this program too: qemu runs no other file of that architecture.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(output)!r}\n")
    return output


def pip_install(python: Sequence[str], wheel: Path, *where: str) -> None:
    command = [*python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *where]
    run([*command, f"{wheel}[cpu]", *TEST_PACKAGES])


def program(folder: Path, variables: str, command: str) -> Path:
    """A file that runs `command` with its arguments, in an environment of these variables alone."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec env -i {variables} PYTHONDONTWRITEBYTECODE=1 {command} "$@"\n')
    path.chmod(0o755)
    return path


def need(name: str, what_to_do: str) -> None:
    if shutil.which(name) is None:
        raise BuildError(f"{name} is not there: {what_to_do}")


def check_qemu(qemu: str) -> None:
    install = (
        f"install qemu-user of Debian 13, or run tools/fetch_qemu.sh and name the program in QEMU: version "
        f"{QEMU_VERSION} or later is needed"
    )
    need(qemu, install)
    said = run([qemu, "--version"])
    version = re.search(r"version (\d+)", said)
    if version is None or int(version[1]) < QEMU_VERSION:
        raise BuildError(f"{said.splitlines()[0]} cannot run ONNX Runtime: {install}")


def check_debian() -> None:
    """Raises BuildError where apt-get cannot fetch Debian's packages for AArch64."""
    need("apt-get", "use Debian 12, whose Python for AArch64 it fetches")
    if "arm64" not in run(["dpkg", "--print-foreign-architectures"]).split():
        raise BuildError(
            "apt-get knows no packages for AArch64: dpkg --add-architecture arm64 && apt-get update"
        )


def steps(bundle: Path) -> list[Step]:
    return [
        Step("no compiler", ["-c", NO_COMPILER]),
        Step("kernel tests", ["-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK, *TESTS]),
        Step("h2o-run", ["-m", "h2o_cli.run", bundle, "-p", "The module defines", "-n", "8", "--ignore-eos"]),
        # Three answers, and the line that says what is right.
        Step("demo", [DEMO, bundle, *SHORT], ANSWER, 4),
    ]


def smoke(python: Path, todo: Sequence[Step], elsewhere: Path) -> None:
    """Raises BuildError for the first step that fails."""
    for step in todo:
        began = time.monotonic()
        output = run([str(python), *map(str, step.arguments)], cwd=elsewhere)
        if output.count(step.says) < step.times:
            raise BuildError(f"{step.name} does not answer {step.says}:\n{output}")
        last = output.strip().rpartition("\n")[2]
        print(f"  {step.name}, {time.monotonic() - began:.0f} s: {last or 'as it should be'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.wheel_smoke", description="Run wheels.")
    parser.add_argument("wheel", type=Path, nargs="*", help=f"for Python {PYTHON_TAG}")
    parser.add_argument("--bundle", type=Path, required=True, help="of the example model")
    qemu = os.environ.get("QEMU") or "qemu-aarch64"
    parser.add_argument("--qemu", default=qemu, help=f"version {QEMU_VERSION} or later")
    given = parser.parse_args()
    if not given.wheel:
        parser.exit(1, f"there is no wheel for Python {PYTHON_TAG}: make wheels\n")
    here = f"_{platform.machine()}.whl"
    for wheel in sorted(given.wheel, key=lambda path: not path.name.endswith(here)):
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder, whole = Path(name), wheel.absolute()
            try:
                is_native = wheel.name.endswith(here)
                python = native(whole, folder) if is_native else emulated(whole, folder, given.qemu)
                smoke(python, steps(given.bundle.absolute()), folder)
            except (OSError, BuildError) as error:
                parser.exit(1, f"{wheel.name} does not run: {error}\n")


if __name__ == "__main__":
    main()
