"""Wheels as a user has them, run without a compiler: make wheel-smoke

    python -m tools.wheel_smoke dist/h2o_edge-0.1.0-cp311-cp311-manylinux_2_27_aarch64.whl BUNDLE

pip unpacks the wheel into a folder of its own, with what it and the tests need. Then three things run there, with
nothing of this environment and no compiler on the PATH: the kernels' tests, h2o-run and examples/demo.py. A
wheel of AArch64 runs under qemu-aarch64, on Debian's Python, which apt-get fetches (docs/wheels.md).
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.wheels import ROOT, BuildError, run

KERNEL_TESTS = ("tests/plugins/test_native*.py", "tests/plugins/test_operator_table.py")
NEED_EXPORTER = [f"test_native_{name}.py" for name in ("bfloat16", "functions", "softcap")]  # and so torch
TEST_PACKAGES = ("pytest", "hypothesis", "ml_dtypes")
PYTHON, PYTHON_TAG = "python3.11", "3.11"
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
RUN = "import sys; from h2o_cli.entry import run; sys.argv[0] = 'h2o-run'; run()"


def install(wheel: Path, arch: str, site: Path) -> None:
    """The wheel, what it needs and what its tests need, as pip installs them on that architecture."""
    platforms = [f"--platform=manylinux_2_{minor}_{arch}" for minor in (28, 27, 26, 17)]
    platforms.append(f"--platform=manylinux2014_{arch}")
    where = ["--only-binary=:all:", "--python-version", PYTHON_TAG, "--target", str(site), *platforms]
    run([PYTHON, "-m", "pip", "install", "--quiet", *where, f"{wheel}[cpu]", *TEST_PACKAGES])


def interpreter(arch: str, folder: Path, site: Path, qemu: str) -> Path:
    """A program in `folder` that is a Python of the architecture with `site`, and with no compiler on its PATH."""
    python = run([PYTHON, "-c", "import sys; print(sys.executable)"]).strip()
    if arch != platform.machine():
        system = folder / "system"
        packages = [f"{name}:arm64" for name in SYSTEM]
        run(["apt-get", "download", "--quiet", *packages], cwd=folder)
        for package in folder.glob("*.deb"):
            run(["dpkg", "-x", str(package), str(system)])
        python = f"{qemu} -L {system} {system}/usr/bin/{PYTHON}"
    program = folder / "python"
    # Processes that Python starts are this program too: qemu runs no other file of that architecture.
    (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {str(program)!r}\n")
    program.write_text(
        f'#!/bin/sh\nexec env -i PATH=/nonexistent PYTHONPATH={site} PYTHONDONTWRITEBYTECODE=1 {python} "$@"\n'
    )
    program.chmod(0o755)
    return program


def smoke(python: Path, bundle: Path, elsewhere: Path) -> None:
    """Raises BuildError for the first thing that fails."""
    tests = [
        str(path)
        for pattern in KERNEL_TESTS
        for path in sorted(ROOT.glob(pattern))
        if path.name not in NEED_EXPORTER
    ]
    calls: Sequence[Sequence[str]] = (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        ["-c", RUN, str(bundle), "-p", "The module defines", "-n", "8", "--ignore-eos"],
        [str(ROOT / "examples" / "demo.py"), str(bundle)],
    )
    for call in calls:
        print(run([str(python), *call], cwd=elsewhere).strip().rpartition("\n")[2], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.wheel_smoke", description="Run a wheel.")
    parser.add_argument("wheel", type=Path, nargs="+")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--qemu", default=os.environ.get("QEMU", "qemu-aarch64"), help="version 10 or later")
    given = parser.parse_args()
    for wheel in given.wheel:
        arch = "aarch64" if wheel.name.endswith("aarch64.whl") else "x86_64"
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            site, elsewhere = folder / "site", folder / "elsewhere"
            elsewhere.mkdir()
            try:
                install(wheel.absolute(), arch, site)
                smoke(interpreter(arch, folder, site, given.qemu), given.bundle.absolute(), elsewhere)
            except (OSError, BuildError) as error:
                parser.exit(1, f"{wheel.name} does not run: {error}\n")


if __name__ == "__main__":
    main()
