"""The table of what nvcc makes of the kernels: that machine code is read right, and what the main ones show."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tools.kernel_table import shared, table, toolkit
from tools.kernel_table.model import GPUS, pipes, share_of_peak
from tools.kernel_table.sass import Code, Round

# A loop over tiles with a copy that goes round four times, a mask that tiles in the middle jump over, and a branch
# to an end outside.
LISTING = """\
        /*0000*/                   IMAD.MOV.U32 R9, RZ, RZ, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0020*/                   IMAD.MOV.U32 R5, RZ, RZ, RZ ;
.L_x_2:
        /*0030*/                   LDGSTS.E.BYPASS.128 [R19], [R8.64], P1 ;
        /*0040*/                   IADD3 R5, R5, 0x2, RZ ;
        /*0050*/                   ISETP.NE.AND P0, PT, R5, 0x8, PT ;
        /*0060*/               @P0 BRA `(.L_x_2) ;
        /*0070*/                   LDSM.16.M88.4 R4, [R20] ;
        /*0080*/                   HMMA.16816.F32 R8, R4, R12, R8 ;
        /*0090*/              @!P2 BRA `(.L_x_3) ;
        /*00a0*/                   FSEL R8, R8, -INF , !P3 ;
        /*00b0*/                   FSEL R9, R9, -INF , !P3 ;
.L_x_3:
        /*00c0*/              @!PT LDS RZ, [RZ] ;
        /*00d0*/                   MUFU.EX2 R8, R8 ;
        /*00e0*/               @P4 BRA `(.L_x_1) ;
        /*00f0*/                   EXIT ;
"""


def test_the_loop_is_counted_as_a_tile_in_the_middle_runs_it() -> None:
    around = Code(LISTING).hot()
    assert around is not None
    assert around.known
    assert {kind: around.of(kind) for kind in ("HMMA", "LDGSTS", "MUFU", "FSEL", "NOP", "LDS")} == {
        "HMMA": 1,
        "LDGSTS": 4,  # four times round
        "MUFU": 1,
        "FSEL": 0,  # jumped over
        "NOP": 1,  # issued, and loads nothing
        "LDS": 0,
    }
    assert around.issued == 2 + 4 * 4 + 3 + 3


def test_a_loop_whose_rounds_nobody_can_tell_is_counted_once() -> None:
    around = Code(LISTING.replace("IADD3 R5, R5, 0x2", "IADD3 R5, R5, R6")).hot()
    assert around is not None
    assert not around.known
    assert around.of("LDGSTS") == 1


def test_shares_of_peak_follow_from_the_busiest_pipe() -> None:
    counted = Counter(
        {"HMMA.16816.F32": 10, "LDSM.16.M88.4": 5, "FFMA": 20, "MUFU.EX2": 20, "ISETP.GE.AND": 5}
    )
    busy = pipes(counted, GPUS[87])
    assert busy == {
        "tensor": 80,
        "float32": 20,
        "integer": 10,
        "exponential": 160,
        "shared memory": 80,
        "issue": 60,
    }
    share = share_of_peak(Round(counted), GPUS[87])
    assert share is not None
    assert (share.busiest, share.overlapped, share.in_turn) == ("exponential", 0.5, 80 / (80 + 50))


def test_blocks_are_as_many_as_registers_shared_memory_and_warps_allow() -> None:
    assert GPUS[86].blocks_that_fit(128, 255, 32 * 1024) == (2, "registers")
    assert GPUS[86].blocks_that_fit(128, 128, 60 * 1024) == (1, "shared memory")
    assert GPUS[87].blocks_that_fit(1024, 32, 0) == (1, "warps")
    assert GPUS[90].blocks_that_fit(32, 16, 0) == (32, "blocks")


@pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing()))
def test_the_main_kernels_spill_nothing_and_have_the_products_that_a_tile_needs(tmp_path: Path) -> None:
    """Of every kind one, so that it takes seconds; the table has all of them."""
    source = tmp_path / "probe.cu"
    wanted = ("attention_f16<64, 64, 4, 2, 64, (Lookup)0, half>", "column_sums_f16<64, (Columns)0, half>")
    source.write_text(
        '#include "attention_f16.cuh"\n#include "column_sums_f16.cuh"\nnamespace h2o::cuda {\n'
        f"template __global__ void {wanted[0]}(AttentionArgs);\n"
        f"template __global__ void {wanted[1]}(ColumnSumArgs);\n}}\n"
    )
    kernels = list(toolkit.kernels(source, 86, tmp_path))
    assert [each.title for each in kernels] == list(wanted)
    dynamic = shared.dynamic_bytes(kernels, tmp_path)
    attention, sums = (table.row(each, dynamic) for each in kernels)
    assert attention.spills == sums.spills == 0
    assert attention.blocks >= 2 <= sums.blocks
    assert attention.counted is not None
    assert sums.counted is not None
    # Of a warp: 32 rows, 64 keys, 64 numbers; scores and outputs. 32 keys and 64 rows; scores alone.
    assert attention.counted["HMMA"] == 2 * 2 * (64 // 8) * (64 // 16)
    assert sums.counted["HMMA"] == 2 * (64 // 8) * (64 // 16)
    assert attention.shared == 2 * 64 * (128 + 64 + 64)
