"""Faults planted in the CUDA kernels: each is found by one of the proofs that take a GPU's place.

A fault is a change of one place in a source. The PTX of that source then takes the place of the right one, or
its machine code is looked at. Faults in the order of work are planted in tests/runtime/test_order_cuda.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import emulation
from tests.plugins.cuda import toolkit
from tests.plugins.cuda.test_last_part import SEQUENCE, SOURCES, memory_operations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing())),
    pytest.mark.skipif(emulation.missing() is not None, reason="needs cmake"),
]


@dataclass(frozen=True)
class Fault:
    what: str
    file: str
    right: str
    wrong: str
    source: str  # the .cu that is compiled
    group: str  # of the kernels' test program
    told: str  # in the message

    def plant(self, folder: Path) -> Path:
        """All sources of the kernels in a folder, with this fault; the path of the one to compile."""
        shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("*.txt", "*.cmake"))
        text = (folder / self.file).read_text()
        assert self.right in text, "the place of this fault has changed"
        (folder / self.file).write_text(text.replace(self.right, self.wrong, 1))
        return folder / self.source


RACE, VALUES, MASK = "two threads race", "FAIL [", "lanes"
OUTSIDE, ALIGNMENT = "outside of", "misaligned"

EXECUTED = [
    Fault(
        "cp.async waited for one group too late",
        "votes_f16.cu",
        "copy_wait<0>();\n            __syncthreads();  // keys,",
        "copy_wait<1>();\n            __syncthreads();  // keys,",
        "votes_f16.cu",
        "select",
        RACE,
    ),
    Fault(
        "registers of an mma fragment swapped",
        "integer_product.cu",
        "operands[0], inputs[0], inputs[1])",
        "operands[0], inputs[1], inputs[0])",
        "integer_product.cu",
        "products",
        VALUES,
    ),
    Fault(
        "a vector load of 16 bytes from an address of 8",
        "integer_product.cu",
        "there ? row * inputs + piece * kPiece : 0",
        "there ? row * inputs + piece * kPiece + 4 : 0",
        "integer_product.cu",
        "products",
        ALIGNMENT,
    ),
    Fault(
        "an address beyond the block's shared memory",
        "integer_product.cu",
        "shared[(warp * kRows + 8 * tile",
        "shared[(2 * warp * kRows + 8 * tile",
        "integer_product.cu",
        "products",
        OUTSIDE,
    ),
    Fault(
        "missing __syncthreads between the warps' sums and their reader",
        "integer_product.cu",
        "    __syncthreads();\n    const int row = threadIdx.x / kOutputs",
        "    const int row = threadIdx.x / kOutputs",
        "integer_product.cu",
        "products",
        RACE,
    ),
    Fault(
        "outputs behind the last not left out",
        "integer_product.cu",
        "piece < w.pieces && output < w.outputs;",
        "piece < w.pieces;",
        "integer_product.cu",
        "products",
        OUTSIDE,
    ),
    Fault(
        "the halves of a word multiplied in another order than they are cut out",
        "integer_product.cu",
        "BITS == 4 ? inputs.z : inputs.y",
        "BITS == 4 ? inputs.y : inputs.y",
        "integer_product.cu",
        "products",
        VALUES,
    ),
    Fault(
        "a row's index that overflows 32 bits",
        "step.cu",
        "const int64_t place = row * args.heads + index % args.heads;",
        "const int place = static_cast<int>(row) * args.heads + index % args.heads;",
        "step.cu",
        "far",
        OUTSIDE,
    ),
    Fault(
        "rows beyond the cache's end not left out",
        "step.cu",
        "if (row < 0 || row >= args.capacity) return;",
        "if (row < 0) return;",
        "step.cu",
        "rows",
        OUTSIDE,
    ),
    Fault(
        "threads behind the last row not left out",
        "rows.cu",
        "    if (i >= count) return;\n    const int64_t slot",
        "    const int64_t slot",
        "rows.cu",
        "bounds",
        OUTSIDE,
    ),
    Fault(
        "a barrier that one warp alone reaches",
        "select.cuh",
        "        __syncthreads();\n        counted = shared.counted[round];",
        "        if (warp == 0) __syncthreads();\n        counted = shared.counted[round];",
        "select.cu",
        "select",
        RACE,
    ),
    Fault(
        "a count of three rounds ago that is not zero again",
        "select.cuh",
        "        if (threadIdx.x == 0) shared.counted[round == 2 ? 0 : round + 1] = 0;\n",
        "",
        "select.cu",
        "select",
        VALUES,
    ),
    Fault(
        "keys of the next tile copied before every warp has its keys",
        "votes_f16.cu",
        "__syncthreads();  // every warp has its keys",
        "",
        "votes_f16.cu",
        "select",
        RACE,
    ),
    Fault(
        "a sample that stands for fewer keys than it does",
        "votes_f16.cu",
        "*= kSampleWeight",
        "*= kSampleWeight / 2",
        "votes_f16.cu",
        "select",
        VALUES,
    ),
    Fault(
        "deviations from another row than the mean",
        "block_select.cu",
        "squares[j] / all - shift * shift",
        "squares[j] / all",
        "block_select.cu",
        "select",
        VALUES,
    ),
    Fault(
        "votes behind the last row",
        "tile_votes.h",
        "min(first + tile, n) - 1",
        "first + tile - 1",
        "block_select.cu",
        "select",
        OUTSIDE,
    ),
    Fault(
        "votes beyond 1",
        "votes_f16.cu",
        "exp2_fast(fminf(score * scale - offset, 0.f))",
        "exp2_fast(score * scale - offset)",
        "votes_f16.cu",
        "select",
        VALUES,
    ),
    Fault(
        "votes beyond 1 without tensor cores",
        "attention_any.cu",
        "args.at_most_one ? 1.f : INFINITY",
        "INFINITY",
        "attention_any.cu",
        "select",
        VALUES,
    ),
    Fault(
        "states that are overwritten before all have read them",
        "rows.cu",
        "    __syncthreads();\n    if (!active) return;",
        "    if (!active) return;",
        "rows.cu",
        "rows",
        VALUES,
    ),
    Fault(
        "an empty state's maximum counted",
        "rows.cu",
        "fmaxf(la > 0 ? ma : -INFINITY,",
        "fmaxf(ma,",
        "rows.cu",
        "rows",
        VALUES,
    ),
    Fault(
        "a ballot of too few lanes",
        "select.cuh",
        "__ballot_sync(kAllLanes, is_equal(bits))",
        "__ballot_sync(0x7fffffffu, is_equal(bits))",
        "page_select.cu",
        "pages",
        MASK,
    ),
    Fault(
        "places of a warp that begin behind its own candidates",
        "select.cuh",
        "before = sum_of_warp(lane < warp ? own : 0);",
        "before = sum_of_warp(lane <= warp ? own : 0);",
        "select.cu",
        "select",
        OUTSIDE,
    ),
    Fault(
        "equals selected beyond those that find a place",
        "select.cuh",
        "is_equal(bits) && rank < of_equal",
        "is_equal(bits)",
        "select.cu",
        "select",
        VALUES,
    ),
]

IN_MACHINE_CODE = [
    Fault(what, file, right, wrong, "fault.cu", "", "")
    for what, file, right, wrong in (
        (
            "no fence before a block counts itself",
            "arrivals.cuh",
            "    fence_between_blocks();\n    __syncthreads();  // every",
            "    __syncthreads();  // every",
        ),
        (
            "no fence before the last block loads",
            "arrivals.cuh",
            "    fence_between_blocks();\n    return true;",
            "    return true;",
        ),
        (
            "a block counted before all its threads have stored",
            "arrivals.cuh",
            "__syncthreads();  // every thread has stored its state",
            "",
        ),
        ("loads that an old line of L1 may answer", "ptx.cuh", "return __ldcg(from);", "return *from;"),
        ("a fence that orders a block alone", "ptx.cuh", "__threadfence();", "__threadfence_block();"),
        ("a count that other blocks do not see", "ptx.cuh", "return atomicInc(count, all - 1);",
         "const unsigned old = *count; *count = old == all - 1 ? 0 : old + 1; return old;"),
    )
]  # fmt: skip
KERNEL = (
    '#include "attention_f16.cuh"\ntemplate __global__ void h2o::cuda::attention_f16<'
    "64, 64, 1, 1, 64, h2o::cuda::Lookup::kNone, half>(h2o::cuda::AttentionArgs);\n"
)


# Faults that the same check finds in another place.
FOUND_LIKE_OTHERS = (
    "threads behind the last row not left out",
    "keys of the next tile copied before every warp has its keys",
    "votes beyond 1",
    "a count of three rounds ago that is not zero again",
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault, id=fault.what, marks=pytest.mark.nightly if fault.what in FOUND_LIKE_OTHERS else ()
        )
        for fault in EXECUTED
    ],
)
def test_it_is_found_as_the_ptx_is_executed(fault: Fault, tmp_path: Path) -> None:
    right = emulation.build_ptx()
    program = emulation.build_tests()
    source = fault.plant(tmp_path / "sources")
    folder = tmp_path / "ptx"
    folder.mkdir()
    for each in right.glob("*.ptx"):
        (folder / each.name).symlink_to(each)
    to = folder / f"{source.stem}.ptx"
    to.unlink()
    headers = [f"-I{each}" for each in emulation.headers()]
    toolkit.run("nvcc", *toolkit.OPTIONS, *headers, "-arch=compute_87", "-ptx", "-o", to, source)
    done = subprocess.run(
        [program, "--small", "--once", fault.group],
        env=os.environ | {emulation.PTX: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert fault.told in done.stdout + done.stderr


@pytest.mark.parametrize("fault", IN_MACHINE_CODE, ids=lambda fault: fault.what)
def test_it_is_found_in_the_machine_code(fault: Fault, tmp_path: Path) -> None:
    source = fault.plant(tmp_path / "sources")
    source.write_text(KERNEL)
    (kernel,) = toolkit.kernels(source, 87, tmp_path)
    assert not SEQUENCE.search(memory_operations(kernel.sass))
