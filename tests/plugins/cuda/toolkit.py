"""nvcc, nvdisasm and c++filt: from a source to its kernels' machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SOURCES = REPO / "plugins" / "kernels" / "cuda"
OPERATORS = REPO / "runtime" / "h2o_runtime" / "operators.py"
OPTIONS = ("-std=c++17", "-O3", "-DNDEBUG")


@dataclass(frozen=True)
class Kernel:
    """One instantiation for one GPU, and its machine code."""

    title: str
    sass: str


def tool(name: str) -> str | None:
    """On PATH, in the toolkit, or in NVIDIA's packages of single tools."""
    folders = [
        *sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin")),
        Path("/usr/local/cuda/bin"),
    ]
    return shutil.which(name) or next((str(each / name) for each in folders if (each / name).exists()), None)


def missing() -> str | None:
    """Why this machine cannot compile and read kernels; None if it can."""
    absent = [name for name in ("nvcc", "nvdisasm", "c++filt", "g++") if tool(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def run(name: str, *arguments: object, stdin: str | None = None) -> str:
    """A tool's output. Raises RuntimeError with the tool's message if it fails."""
    found = tool(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    command = [found, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=stdin)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def includes(source: Path, folder: Path) -> list[str]:
    """Options that find the headers of a source: beside it, in this repository, or generated into `folder`."""
    generated = folder / "generated"
    header = generated / "h2o" / "operators.h"
    if not header.exists() or header.stat().st_mtime < OPERATORS.stat().st_mtime:
        own = header.with_suffix(f".{threading.get_ident()}")  # several compile at the same time
        run(sys.executable, SOURCES.parent / "generate.py", OPERATORS, own)
        own.replace(header)
    folders = (
        source.parent,
        source.parent.parent / "include",
        SOURCES,
        SOURCES.parent / "include",
        generated,
    )
    return [f"-I{each}" for each in folders if each.exists()]


def cubin(source: Path, architecture: int, folder: Path) -> Path:
    """The source's machine code in `folder`; a cubin newer than every source is reused."""
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / f"{source.stem}.sm_{architecture}.cubin"
    inputs = [each for each in source.parent.iterdir() if each.suffix in {".cu", ".cuh", ".h"}]
    if not to.exists() or to.stat().st_mtime < max(each.stat().st_mtime for each in inputs):
        run(
            "nvcc",
            *OPTIONS,
            *includes(source, folder),
            f"-arch=sm_{architecture}",
            "-cubin",
            "-o",
            to,
            source,
        )
    return to


def kernels(source: Path, architecture: int, folder: Path) -> Iterator[Kernel]:
    """The kernels of a source, in the order of their names."""
    listed = run("nvdisasm", "-c", cubin(source, architecture, folder))
    code = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\s*\.section|\Z)", listed, re.MULTILINE | re.DOTALL))
    titles = run("c++filt", stdin="\n".join(code)).splitlines()
    for title, sass in sorted(zip(titles, code.values(), strict=True)):
        yield Kernel(title, sass)
