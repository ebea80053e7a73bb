"""nvcc's code for the end of a split launch, where the last block combines the partial results of all.

No emulation shows the order in which a device's memory lets stores be seen. The machine code shows it: every
block fences what it stored, meets, counts itself; the last one meets, fences, and loads past its own L1.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.plugins.cuda import toolkit

SOURCES = toolkit.SOURCES
PARTED = """
#include "attention_f16.cuh"
#include "latent_f16.cuh"
namespace h2o::cuda {
template __global__ void attention_f16<64, 64, 1, 1, 64, Lookup::kNone, half>(AttentionArgs);
template __global__ void latent_f16<576, 512, 1, half>(AttentionArgs);
}
"""
FENCE = r"MEMBAR\.SC\.GPU (?:ERRBAR )?CCTL\.IVALL "
MEETING = r"BAR\.SYNC\S* "
SEQUENCE = re.compile(
    rf"STG\S* {FENCE}{MEETING}ATOMG\.E\.INC\.STRONG\.GPU {MEETING}{FENCE}(?:LDG\S*\.STRONG\.GPU |STG\S* )+$"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing())),
]


def memory_operations(sass: str) -> str:
    """All that concerns device memory or all threads of a block, in order of address."""
    names = r"\b((?:MEMBAR|ERRBAR|CCTL|BAR|ATOM|ATOMG|RED|LDG|LD|STG|ST)(?:\.[\w.]+)?) "
    return "".join(f"{name} " for name in re.findall(names, sass.replace(";", " ;")) if "DEPBAR" not in name)


@pytest.mark.parametrize("architecture", [87, pytest.param(90, marks=pytest.mark.nightly)])
def test_the_last_block_sees_what_all_have_stored(architecture: int, tmp_path: Path) -> None:
    source = tmp_path / "parted.cu"
    source.write_text(PARTED)
    kernels = list(toolkit.kernels(source, architecture, tmp_path))
    assert len(kernels) == 2
    for kernel in kernels:
        assert SEQUENCE.search(memory_operations(kernel.sass)), kernel.title
