"""The dynamic shared memory of a kernel's launch, from the sources.

Each expression below is the one that the kernel's launch passes. A small program that includes the source
declares an array of that size, and is compiled against the stand-in for the CUDA runtime. The symbol table
gives the size.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tools.kernel_table.toolkit import REPO, SOURCES, Kernel, includes, run

EMULATOR = REPO / "tests" / "plugins" / "cuda" / "emulator"
MOST_PARTS = 128  # of a decode step's keys
# Kernels that are not listed use none. {0}, {1}, ... are template arguments.
EXPRESSIONS = {
    "attention_f16": "AttentionTile<{0}, {1}, {2}, {3}, {4}, {5}>::kSharedBytes",
    "attention_f32": "AttentionTileF32<{0}, {1}, {2}>::kSharedBytes",
    "latent_f16": "LatentTile<{0}, {1}, {2}>::kSharedBytes",
    "column_sums_f16": "ColumnSumTile<{0}>::kSharedBytes",
    "column_sums_f32": "ColumnSumTileF32<{0}>::kSharedBytes",
    "combine_parts": f"sizeof(float) * kRows * {MOST_PARTS}",
    "attend_pattern": "sizeof(Shared<{0}>) * kWarps",
    "sum_diagonals": "sizeof(float) * kStaged * {0}",
    "choose_lines": "sizeof(SelectShared)",
    "choose_pages": "sizeof(Shared)",
    "select_by_votes": "sizeof(SelectShared)",
    "select_memory": "sizeof(SelectShared)",
}


def dynamic_bytes(kernels: Iterable[Kernel], sources: Path = SOURCES) -> dict[str, int]:
    """Bytes per block by kernel title, for the kernels that use any."""
    wanted = {k.title: k for k in kernels if k.name in EXPRESSIONS}
    by_source: dict[str, dict[str, str]] = {}
    for title, kernel in wanted.items():
        expression = EXPRESSIONS[kernel.name].format(*kernel.arguments)
        by_source.setdefault(kernel.source, {})[title] = expression
    found = {}
    for source, expressions in by_source.items():
        sizes = _sizes(sources / source, list(expressions.values()))
        found.update(zip(expressions, sizes, strict=True))
    return found


def _sizes(source: Path, expressions: list[str]) -> list[int]:
    lines = [f'#include "{source}"', "namespace h2o::cuda {"]
    lines += [f"char h2o_size_{at}[{expression}];" for at, expression in enumerate(expressions)]
    with tempfile.TemporaryDirectory() as folder:
        program, built = Path(folder, "sizes.cpp"), Path(folder, "sizes.o")
        program.write_text("\n".join([*lines, "}"]))
        folders = [f"-I{EMULATOR}", *includes(source, Path(folder))]
        run("g++", "-std=c++17", "-O0", "-w", "-DH2O_EMULATED", *folders, "-c", program, "-o", built)
        listed = run("nm", "-S", built)
    sizes = {int(at): int(size, 16) for size, at in re.findall(r"\w+ (\w+) \w \w*?h2o_size_(\d+)E", listed)}
    return [sizes[at] for at in range(len(expressions))]
