"""A program that ends while a Generator lives says nothing about it: native objects are freed with Python's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import emulation

import h2o_plugins

REPO = Path(__file__).resolve().parents[2]

EMULATED = """
import os
os.environ["H2O_EMULATION_EAGER"] = "1"
from pytest import MonkeyPatch
from tests.emulation import install, short_warm_up
install()
short_warm_up(MonkeyPatch())
"""
LOAD = """
import sys, threading
from h2o_runtime import Generator
g = Generator.load(sys.argv[1], **dict(arg.split("=") for arg in sys.argv[2:]))
logits = g.prefill([1, 2, 3])
"""
ENDS = {
    "in the module, in a circle and in the middle of an answer": """
def later(): return g
answer = g.generate([1, 2, 3, 4], max_new_tokens=4); next(answer); next(answer)
g.itself = g; sys.generator = g
""",
    "in a thread that never ends": """
def wait(mine):
    threading.Event().wait()
threading.Thread(target=wait, args=(g,), daemon=True).start()
""",
}


def run(program: str, *arguments: str) -> None:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(h2o_plugins.cpu_kernels() is None, reason="the native kernels are not built")
@pytest.mark.parametrize("where", ENDS)
def test_on_the_cpu(tiny_bundle: Path, where: str) -> None:
    run(LOAD + ENDS[where], str(tiny_bundle), "device=cpu", "attention=native")


@pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))
@pytest.mark.parametrize("where", ENDS)
def test_on_an_emulated_gpu(tiny_bundle: Path, where: str) -> None:
    run(EMULATED + LOAD + ENDS[where], str(tiny_bundle), "device=cuda")
