"""Two servers on one --cache-dir: one is killed while it writes, and many requests take turns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full

KILLED = Path(__file__).with_name("killed_while_writing.py")
FULL = Full()
SHORT, LONG = bundles.random_ids(90, 11).tolist(), bundles.random_ids(200, 12).tolist()
TALKS, TURNS, ANSWER = 5, 10, 3


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def server(bundle: Path, folder: Path) -> Generator:
    return Generator.load(
        bundle, context=400, threads=1, device="cpu", folder=folder, folder_bytes=1 << 30, folder_shared=True
    )


@pytest.fixture(scope="module")
def fresh(bundle: Path) -> Iterator[Generator]:
    """One that remembers nothing, once it is reset."""
    with Generator.load(bundle, context=400, threads=1, device="cpu") as generator:
        yield generator


def answer(generator: Generator, prompt: list[int]) -> tuple[NDArray[np.float32], list[int]]:
    """The prompt's logits [vocab], and what is most likely to follow."""
    logits = following = generator.prefill(prompt, FULL).copy()
    tokens: list[int] = []
    for _ in range(ANSWER):
        tokens.append(int(following.argmax()))
        following = generator.decode(tokens[-1])
    return logits, tokens


def share(generator: Generator) -> None:
    """As a server does after each answer, until it is written."""
    generator.pool.share(generator.session)
    folder = generator.pool.folder
    assert folder is not None
    while folder.waiting():
        time.sleep(0.01)


@pytest.mark.parametrize("member", ["0", "1", "4", "rename"])
def test_nothing_is_loaded_of_what_a_killed_server_was_writing(
    member: str, bundle: Path, fresh: Generator, tmp_path: Path
) -> None:
    with server(bundle, tmp_path) as other:
        answer(other, SHORT)
        share(other)
        command = [sys.executable, str(KILLED), str(bundle), str(tmp_path), json.dumps(LONG), member]
        child = subprocess.run(command, capture_output=True, check=False)
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        (partial,) = tmp_path.glob(".*.partial")
        assert partial.stat().st_size > 0
        fresh.reset()
        np.testing.assert_array_equal(answer(other, LONG)[0], answer(fresh, LONG)[0])
        assert other.reused == 0
    with server(bundle, tmp_path) as later:
        assert not partial.exists()
        for prompt in (SHORT, LONG):
            fresh.reset()
            logits, tokens = answer(fresh, [*prompt, 5])
            again, same = answer(later, [*prompt, 5])
            assert later.reused == len(prompt)
            np.testing.assert_allclose(again, logits, rtol=1e-4, atol=1e-4)
            assert same == tokens
