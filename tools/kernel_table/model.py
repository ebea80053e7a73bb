"""A model of a kernel's loop on a GPU: blocks per multiprocessor, and the share of its peak.

A multiprocessor has four schedulers, each with the warps and pipes of its quarter. A scheduler issues one
instruction a cycle; a pipe is then busy for some cycles with it. Figures below are cycles of a quarter's pipe a
warp instruction:

- general arithmetic, conversions, exponentials: from the CUDA programming guide's table of instruction throughputs,
  results a clock a multiprocessor: 128 (64 on SM80) for float32 sums and products, 64 for integers, comparisons,
  minima and conversions to half, 16 for exponentials. 32 lanes, four quarters: 1 (2), 2, and 8 cycles;
- tensor cores, m16n8k16 of half with float32 sums, 4096 FLOP: from the peak rates that NVIDIA gives for its
  products. A100 and Orin do 2048 FLOP a clock a multiprocessor, 8 cycles; RTX A6000, L40S and RTX PRO 6000 1024,
  16 cycles, and their GeForce siblings half of that, 32. Hopper's mma.sync reaches about 63 % of what its
  warp-group instructions do (Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking):
  6.4 cycles;
- shared memory moves 128 bytes a clock for all four quarters: a warp's 512 bytes (ldmatrix x4, 16-byte loads and
  copies) take 4 cycles, 16 for a quarter if all do the same. No bank conflicts; shuffles take 4.

Peak is what the tensor cores do when they never wait (the float32 units, for kernels without them). Two shares
bound what can be expected. `overlapped`: the busiest pipe never waits, everything else hides behind it. `in turn`:
a warp alone, whose tensor cores wait while everything else is issued.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tools.kernel_table.sass import Round

FLOAT = {"FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2", "IMAD"}
EXPONENT = {"MUFU", "F2I", "I2F", "I2FP", "F2F"}
SHARED = {"LDSM", "LDS", "STS", "LDGSTS", "LDG", "STG", "LDL", "STL", "ATOMS"}
ISSUED_ONLY = {
    "NOP",
    "BRA",
    "BSSY",
    "BSYNC",
    "BAR",
    "DEPBAR",
    "LDGDEPBAR",
    "WARPSYNC",
    "CALL",
    "VOTE",
    "ERRBAR",
}
QUARTERS = 4


@dataclass(frozen=True)
class Gpu:
    """Limits of a multiprocessor, from the programming guide's table, and cycles of its pipes."""

    name: str
    tensor: float  # cycles of an m16n8k16
    multiply: float  # of a float32 multiply-add
    warps: int
    blocks: int
    shared: int  # KB

    def blocks_that_fit(self, threads: int, registers: int, shared: int) -> tuple[int, str]:
        """How many blocks run at once, and which limit stops more."""
        warps = -(-threads // 32)
        of_warp = -(-registers * 32 // 256) * 256  # registers are allocated in units of 256
        limits = {
            "blocks": self.blocks,
            "warps": self.warps // warps,
            "registers": 65536 // of_warp // warps,
            "shared memory": self.shared * 1024 // (shared + 1024),  # the system reserves 1 KB per block
        }
        least = min(limits, key=lambda each: limits[each])
        return limits[least], least


GPUS = {
    80: Gpu("A100", 8, 2, 64, 32, 164),
    86: Gpu("RTX A6000", 16, 1, 48, 16, 100),
    87: Gpu("Jetson Orin", 8, 1, 48, 16, 164),
    89: Gpu("L40S", 16, 1, 48, 24, 100),
    90: Gpu("H100", 6.4, 1, 64, 32, 228),
    120: Gpu("RTX PRO 6000", 16, 1, 48, 24, 100),
}


def pipes(counted: Counter[str], gpu: Gpu) -> dict[str, float]:
    """Cycles for which these instructions of one warp keep each pipe of a quarter busy."""
    busy = {
        "tensor": 0.0,
        "float32": 0.0,
        "integer": 0.0,
        "exponential": 0.0,
        "shared memory": 0.0,
        "issue": 0.0,
    }
    for opcode, n in counted.items():
        kind = opcode.split(".")[0]
        busy["issue"] += n
        if kind == "HMMA":
            busy["tensor"] += n * gpu.tensor
        elif kind in FLOAT:
            busy["float32"] += n * (2 * gpu.multiply if kind == "IMAD" else gpu.multiply)
        elif kind in EXPONENT:
            busy["exponential"] += n * 8
        elif kind in SHARED:
            busy["shared memory"] += n * QUARTERS * max(1, _bytes(opcode) // 4)
        elif kind == "SHFL":
            busy["shared memory"] += n * QUARTERS
        elif kind not in ISSUED_ONLY and not kind.startswith("U"):
            busy["integer"] += n * 2
    return busy


def _bytes(opcode: str) -> int:
    """That a lane moves."""
    if opcode.startswith("LDSM"):
        return 4 * int(opcode.rsplit(".", 1)[-1]) if opcode[-1].isdigit() else 4
    found = re.search(r"\.(64|128)\b", opcode)
    return int(found[1]) // 8 if found else 4


@dataclass(frozen=True)
class Share:
    """Shares of peak (the two defined above), and the busiest pipe."""

    overlapped: float
    in_turn: float
    busiest: str


def share_of_peak(around: Round, gpu: Gpu) -> Share | None:
    """None for a loop without products."""
    busy = pipes(around.counted, gpu)
    products = around.of("HMMA") or around.of("FFMA")
    useful = busy["tensor"] if around.of("HMMA") else around.of("FFMA") * gpu.multiply
    if not products:
        return None
    busiest = max(busy, key=lambda each: busy[each])
    alone = useful + busy["issue"] - products
    return Share(useful / busy[busiest], useful / alone, busiest)
