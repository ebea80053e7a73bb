"""Faults planted in the CUDA kernels: each is found by one of the proofs that take a GPU's place.

A fault is a change of one place in a source. The kernels' test program is then linked with that source in place of
the right one, or the source's machine code is looked at. Faults in the order of work are planted in
tests/runtime/test_order_cuda.py.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import emulation
from tests.plugins.cuda import toolkit
from tests.plugins.cuda.test_last_part import SEQUENCE, SOURCES, memory_operations

pytestmark = pytest.mark.nightly


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    right: str
    wrong: str
    told: str = ""  # in the message
    source: str = ""  # the .cu that is compiled, where the file is a header
    group: str = ""  # of the kernels' test program, where it is not the source's

    def plant(self, folder: Path) -> Path:
        """All sources of the kernels in a folder, with this fault; the path of the one to compile."""
        shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.txt", "*.cmake"))
        text = (folder / self.file).read_text()
        assert self.right in text, "the place of this fault has changed"
        (folder / self.file).write_text(text.replace(self.right, self.wrong, 1))
        return folder / (self.source or self.file)


RACE, VALUES, MASK, ALIGNMENT = "two threads race", "FAIL [", "lanes", "misaligned"
OUTSIDE = "outside"  # of a buffer, where no memory is

GROUPS = {  # of the kernels' test program, by source; others are of "select"
    "integer_product.cu": "products",
    "rows.cu": "rows",
    "page_select.cu": "pages",
    "step.cu": "far",
}

EXECUTED = [
    Fault(
        "cp.async waited for one group too late", "votes_f16.cu",
        "copy_wait<0>();\n            __syncthreads();  // keys,",
        "copy_wait<1>();\n            __syncthreads();  // keys,", RACE
    ),
    Fault(
        "registers of an mma fragment swapped", "integer_product.cu",
        "operands[0], inputs[0], inputs[1])", "operands[0], inputs[1], inputs[0])", VALUES
    ),
    Fault(
        "a vector load of 16 bytes from an address of 8", "integer_product.cu",
        "there ? row * inputs + piece * kPiece : 0", "there ? row * inputs + piece * kPiece + 4 : 0", ALIGNMENT
    ),
    Fault(
        "an address beyond the block's shared memory", "integer_product.cu",
        "shared[(warp * kRows + 8 * tile", "shared[(2 * warp * kRows + 8 * tile", OUTSIDE
    ),
    Fault(
        "outputs behind the last not left out", "integer_product.cu",
        "piece < w.pieces && output < w.outputs;", "piece < w.pieces;", OUTSIDE
    ),
    Fault(
        "a row's index that overflows 32 bits", "step.cu",
        "const int64_t place = row * args.heads + index % args.heads;",
        "const int place = static_cast<int>(row) * args.heads + index % args.heads;", OUTSIDE
    ),
    Fault(
        "rows beyond the cache's end not left out", "step.cu",
        "if (row < 0 || row >= args.capacity) return;", "if (row < 0) return;", OUTSIDE, group="rows"
    ),
    Fault(
        "a barrier that one warp alone reaches", "select.cuh",
        "        __syncthreads();\n        counted = shared.counted[round];",
        "        if (warp == 0) __syncthreads();\n        counted = shared.counted[round];", RACE, "select.cu"
    ),
    Fault(
        "deviations from another row than the mean", "block_select.cu",
        "squares[j] / all - shift * shift", "squares[j] / all", VALUES
    ),
    Fault(
        "states that are overwritten before all have read them", "rows.cu",
        "    __syncthreads();\n    if (!active) return;", "    if (!active) return;", VALUES
    ),
    Fault(
        "a ballot of too few lanes", "select.cuh", "__ballot_sync(kAllLanes, is_equal(bits))",
        "__ballot_sync(0x7fffffffu, is_equal(bits))", MASK, "page_select.cu"
    ),
    Fault(
        "equals selected beyond those that find a place", "select.cuh",
        "is_equal(bits) && rank < of_equal", "is_equal(bits)", VALUES, "select.cu"
    ),
]  # fmt: skip

IN_MACHINE_CODE = [
    Fault(
        "no fence before a block counts itself", "arrivals.cuh",
        "    fence_between_blocks();\n    __syncthreads();  // every", "    __syncthreads();  // every"
    ),
    Fault(
        "no fence before the last block loads", "arrivals.cuh",
        "    fence_between_blocks();\n    return true;", "    return true;"
    ),
    Fault(
        "a block counted before all its threads have stored", "arrivals.cuh",
        "__syncthreads();  // every thread has stored its state", ""
    ),
    Fault("loads that an old line of L1 may answer", "ptx.cuh", "return __ldcg(from);", "return *from;"),
    Fault("a fence that orders a block alone", "ptx.cuh", "__threadfence();", "__threadfence_block();"),
    Fault(
        "a count that other blocks do not see", "ptx.cuh", "return atomicInc(count, all - 1);",
        "const unsigned old = *count; *count = old == all - 1 ? 0 : old + 1; return old;"
    ),
]  # fmt: skip
KERNEL = """
#include "attention_f16.cuh"
namespace h2o::cuda {
template __global__ void attention_f16<64, 64, 1, 1, 64, Lookup::kNone, half>(AttentionArgs);
}
"""


@pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))
@pytest.mark.parametrize("fault", EXECUTED, ids=lambda fault: fault.what)
def test_it_is_found_as_the_kernel_runs(fault: Fault, tmp_path: Path) -> None:
    source = fault.plant(tmp_path / "sources")
    group = fault.group or GROUPS.get(source.name, "select")
    command = [emulation.build_tests_with(source), "--small", "--once", group]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if fault.told == OUTSIDE:
        assert done.returncode == -signal.SIGSEGV
    else:
        assert done.returncode != 0
        assert fault.told in done.stdout + done.stderr


@pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing()))
@pytest.mark.parametrize("fault", IN_MACHINE_CODE, ids=lambda fault: fault.what)
def test_it_is_found_in_the_machine_code(fault: Fault, tmp_path: Path) -> None:
    source = fault.plant(tmp_path / "sources").with_name("fault.cu")
    source.write_text(KERNEL)
    (kernel,) = toolkit.kernels(source, 87, tmp_path)
    assert not SEQUENCE.search(memory_operations(kernel.sass))
