"""Rows of the table, and their form on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.kernel_table.model import GPUS, share_of_peak
from tools.kernel_table.sass import Code
from tools.kernel_table.toolkit import Kernel

COUNTED = ("HMMA", "FFMA", "LDSM", "LDS", "STS", "LDGSTS", "LDG", "MUFU", "ISETP", "FSEL", "STL", "LDL")
MAIN = {
    "attention_f16<64, 64, 4, 2, 64, (Lookup)0, half>": "attention, d = 64",
    "attention_f16<64, 64, 4, 2, 128, (Lookup)0, half>": "attention, d = 64, 128 keys",
    "attention_f16<64, 64, 4, 2, 64, (Lookup)1, half>": "… to a memory",
    "attention_f16<64, 64, 1, 1, 64, (Lookup)0, half>": "… of few tokens",
    "attention_f16<64, 64, 2, 2, 64, (Lookup)2, half>": "… to a list",
    "attention_f16<64, 64, 1, 1, 64, (Lookup)2, half>": "… to a list, of few tokens",
    "attention_f16<128, 128, 4, 2, 64, (Lookup)0, half>": "attention, d = 128",
    "attention_f16<128, 128, 4, 2, 32, (Lookup)0, half>": "… 32 keys",
    "attention_f16<128, 128, 4, 2, 64, (Lookup)1, half>": "… to a memory",
    "attention_f16<128, 128, 1, 1, 64, (Lookup)0, half>": "… of few tokens",
    "attention_f16<128, 128, 2, 2, 64, (Lookup)2, half>": "… to a list",
    "attention_f16<128, 128, 1, 1, 64, (Lookup)2, half>": "… to a list, of few tokens",
    "latent_f16<576, 512, 1, half>": "latents, 16 rows",
    "latent_f16<576, 512, 4, half>": "latents, 64 rows",
    "column_sums_f16<64, (Columns)0, half>": "column sums, d = 64",
    "column_sums_f16<128, (Columns)0, half>": "column sums, d = 128",
    "column_sums_f16<576, (Columns)0, half>": "column sums of latents",
    "attention_f32<64, 4, false, float>": "float32 attention, d = 64",
    "column_sums_f32<64, float>": "float32 column sums, d = 64",
}


@dataclass(frozen=True)
class Row:
    """One instantiation on one GPU; fields after `limit` are None without a loop over tiles."""

    kernel: str
    architecture: int
    registers: int
    spills: int  # bytes a thread
    shared: int  # bytes per block, static and dynamic
    blocks: int  # run at once on a multiprocessor
    limit: str
    issued: int | None = None
    at_least: bool = False  # an inner loop's iterations are unknown
    counted: dict[str, int] | None = None
    overlapped: float | None = None
    in_turn: float | None = None
    busiest: str | None = None


def row(kernel: Kernel, dynamic: dict[str, int]) -> Row:
    gpu = GPUS[kernel.architecture]
    shared = kernel.static_shared + dynamic.get(kernel.title, 0)
    blocks, limit = gpu.blocks_that_fit(kernel.threads, kernel.registers, shared)
    start = (kernel.title, kernel.architecture, kernel.registers, kernel.spills, shared, blocks, limit)
    around = Code(kernel.sass).hot()
    share = share_of_peak(around, gpu) if around else None
    if around is None or share is None:
        return Row(*start)
    counted = {kind: around.of(kind) for kind in COUNTED}
    shares = round(share.overlapped, 3), round(share.in_turn, 3), share.busiest
    return Row(*start, around.issued, not around.known, counted, *shares)


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [asdict(each) for each in rows]


def markdown(rows: list[Row]) -> str:
    """The loops of the main kernels in one table per GPU, and one line for every kernel."""
    lines: list[str] = []
    architectures = sorted({each.architecture for each in rows})
    for architecture in architectures:
        here = {each.kernel: each for each in rows if each.architecture == architecture}
        lines += [f"### SM{architecture}, {GPUS[architecture].name}", ""]
        lines += list(_loops([here[name] for name in MAIN if name in here]))
        lines += [""]
    return "\n".join([*lines, "### All kernels", "", *_all(rows, architectures)])


def _loops(rows: list[Row]) -> Iterator[str]:
    titles = ("kernel", "registers", "shared KB", "blocks", "issued", "products", "matrix loads", "copies")
    titles += ("exponentials", "compares", "overlapped", "in turn", "busiest")
    yield f"| {' | '.join(titles)} |"
    yield "|---|" + "---:|" * (len(titles) - 2) + "---|"
    for each in rows:
        yield f"| {' | '.join([MAIN[each.kernel], *_cells(each)])} |"


def _cells(row: Row) -> list[str]:
    spilled = f" + {row.spills} B spilled" if row.spills else ""
    start = [f"{row.registers}{spilled}", f"{row.shared / 1024:.3g}", str(row.blocks)]
    if row.counted is None or row.overlapped is None or row.in_turn is None:
        return [*start, *["–"] * 8, ""]
    of = row.counted
    counts = [
        of["HMMA"] or of["FFMA"],
        of["LDSM"],
        of["LDGSTS"] + of["LDG"],
        of["MUFU"],
        of["ISETP"] + of["FSEL"],
    ]
    shares = [f"{each:.0%}" for each in (row.overlapped, row.in_turn)]
    issued = f"{'≥ ' if row.at_least else ''}{row.issued}"
    return [*start, issued, *map(str, counts), *shares, row.busiest or ""]


def _all(rows: list[Row], architectures: list[int]) -> Iterator[str]:
    titles = [f"SM{each}" for each in architectures]
    yield f"| kernel | made for | {' | '.join(titles)} |"
    yield "|---|---:|" + "---|" * len(architectures)
    names = sorted({each.kernel.split("<")[0] for each in rows})
    for name in names:
        own = [each for each in rows if each.kernel.split("<")[0] == name]
        cells = [_span([each for each in own if each.architecture == one]) for one in architectures]
        yield f"| {name} | {len({each.kernel for each in own})} | {' | '.join(cells)} |"


def _span(rows: list[Row]) -> str:
    """Registers from fewest to most, and spills."""
    fewest, most = min(each.registers for each in rows), max(each.registers for each in rows)
    spilled = [each.spills for each in rows if each.spills]
    span = f"{fewest}" if fewest == most else f"{fewest}–{most}"
    return f"{span}, {len(spilled)} spill up to {max(spilled)} B" if spilled else span
