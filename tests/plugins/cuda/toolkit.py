"""nvcc, cuobjdump, nvdisasm and c++filt: from a source to its kernels' resources and machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
SOURCES = REPO / "plugins" / "kernels" / "cuda"
OPERATORS = REPO / "runtime" / "h2o_runtime" / "operators.py"
RESERVED = 1024
OPTIONS = ("-std=c++17", "-O3", "-DNDEBUG")


@dataclass(frozen=True)
class Kernel:
    """One instantiation for one GPU. `arguments` are the template's, as C++ writes them."""

    source: str
    name: str
    arguments: tuple[str, ...]
    architecture: int
    threads: int  # of a block: the launch bound
    registers: int
    stack: int  # bytes a thread
    static_shared: int  # bytes
    sass: str

    @property
    def title(self) -> str:
        return f"{self.name}<{', '.join(self.arguments)}>" if self.arguments else self.name

    @property
    def spills(self) -> int:
        """Bytes per thread of stores to and loads from local memory, as ptxas counts them."""
        found = re.findall(r"\b(?:STL|LDL)(?:\.\w+)*?(\.64|\.128)?\s", self.sass)
        return sum({"": 4, ".64": 8, ".128": 16}[width] for width in found)


def tool(name: str) -> str | None:
    """On PATH, in the toolkit, or in NVIDIA's packages of single tools."""
    folders = [
        *sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("cu*/bin")),
        Path("/usr/local/cuda/bin"),
    ]
    return shutil.which(name) or next((str(each / name) for each in folders if (each / name).exists()), None)


def missing() -> str | None:
    """Why this machine cannot compile and read kernels; None if it can."""
    absent = [
        name for name in ("nvcc", "cuobjdump", "nvdisasm", "c++filt", "g++", "nm") if tool(name) is None
    ]
    return f"{', '.join(absent)} not installed" if absent else None


def run(name: str, *arguments: object, stdin: str | None = None) -> str:
    """A tool's output. Raises RuntimeError with the tool's message if it fails."""
    found = tool(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed, and the table cannot be made without it")
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
    file = cubin(source, architecture, folder)
    resources = dict(_resources(run("cuobjdump", "-res-usage", file)))
    threads = dict(_threads(run("cuobjdump", "-elf", file)))
    code = dict(_sections(run("nvdisasm", "-c", file)))
    plain = run("c++filt", stdin="\n".join(resources)).splitlines()
    for title, mangled in sorted(zip(plain, resources, strict=True)):
        name, arguments = _parsed(title)
        registers, stack, static = resources[mangled]
        yield Kernel(
            source.name,
            name,
            arguments,
            architecture,
            threads[mangled],
            registers,
            stack,
            static,
            code[mangled],
        )


def _resources(listed: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for name, usage in re.findall(r"Function (\w+):\s*\n(.*)", listed):
        of = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)}
        # From SM90 on, the count includes the kilobyte per block that the system reserves.
        yield name, (of["REG"], of["STACK"], of["SHARED"] - (RESERVED if of["SHARED"] >= RESERVED else 0))


def _threads(listed: str) -> Iterator[tuple[str, int]]:
    for section in re.split(r"\n(?=\.nv\.info\.)", listed)[1:]:
        bound = re.search(r"EIATTR_MAX_THREADS\s+Format:\s*\w+\s+Value:\s*(0x[0-9a-f]+)", section)
        if bound:
            yield section.split()[0].removeprefix(".nv.info."), int(bound[1], 16)


def _sections(listed: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\s*\.section|\Z)", listed, re.M | re.S)


def _parsed(title: str) -> tuple[str, tuple[str, ...]]:
    """A demangled kernel's own name and template arguments, without our namespaces."""
    plain = re.sub(r"h2o::cuda::|\(anonymous namespace\)::|^void ", "", title)
    found = re.match(r"(\w+)(?:<(.*?)>)?\(", plain)
    if found is None:
        raise RuntimeError(f"c++filt gave a name that is no function's: {title}")
    short = {"signed char": "int8_t", "__half": "half"}
    arguments = [each.strip() for each in (found[2] or "").split(",") if each.strip()]
    return found[1], tuple(short.get(each, each) for each in arguments)


def architectures(asked: Sequence[int]) -> list[int]:
    """The requested ones that nvcc supports."""
    known = run("nvcc", "--list-gpu-code")
    return [each for each in asked if f"sm_{each}" in known.split()]
