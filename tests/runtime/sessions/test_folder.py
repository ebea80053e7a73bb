"""--cache-dir: conversations go on after others had their turn, and after a restart."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import PrefillPolicy, Query

Float32 = NDArray[np.float32]
SPARSE = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
FULL = altered(SPARSE, policy="full")
CONTEXT = 400
TALKS = [bundles.random_ids(150, seed).tolist() for seed in range(4)]


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


def filing(bundle: Path, folder: Path, pool: int = 0, most: int = 1 << 30) -> Generator:
    options = {"pool_bytes": pool, "folder": folder, "folder_bytes": most}
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", **options)


def written(generator: Generator) -> None:
    """Until the thread has nothing to write."""
    folder = generator.pool.folder
    assert folder is not None
    while folder.waiting():
        time.sleep(0.01)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our warnings; other packages tell more."""
    records = (record for record in caplog.records if record.levelno >= logging.WARNING)
    return [record.getMessage() for record in records if record.name.startswith("h2o_runtime.")]


@pytest.mark.parametrize("policy", [SPARSE, FULL], ids=["sparse", "full"])
def test_what_goes_on_after_a_restart_is_as_if_nothing_had_been(
    bundle: Path, tmp_path: Path, policy: PrefillPolicy[Any]
) -> None:
    folder = tmp_path / "conversations"
    expected = []
    with Generator.load(bundle, context=CONTEXT, threads=1, device="cpu") as alone:
        for talk in TALKS[:3]:
            alone.reset()
            alone.prefill(talk, policy)
            alone.decode(7)
            expected.append((alone.prefill([*talk, 7, 8, 9], policy).copy(), alone.decode(5).copy()))
    with filing(bundle, folder) as generator:
        for talk in TALKS[:3]:
            generator.prefill(talk, policy)
            written(generator)
            generator.decode(7)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [name.endswith(".session") for name in names(folder)] == [True] * 3
    with filing(bundle, folder, pool=1 << 30) as generator:
        for talk, (logits, next_logits) in zip(TALKS, expected, strict=False):
            np.testing.assert_array_equal(generator.prefill([*talk, 7, 8, 9], policy), logits)
            written(generator)
            assert generator.reused == 151
            np.testing.assert_array_equal(generator.decode(5), next_logits)
    assert len(names(folder)) == 3  # each took the place of what it went on from


def test_what_memory_has_no_room_for_is_written_meanwhile(bundle: Path, tmp_path: Path) -> None:
    with filing(bundle, tmp_path) as generator:
        for talk in TALKS[:3]:
            generator.prefill(talk, FULL)
        generator.prefill([*TALKS[0], 5], FULL)
        assert generator.reused == 150  # written, or about to be
        written(generator)
        generator.prefill([*TALKS[1], 5], FULL)
        assert generator.reused == 150
        generator.prefill(TALKS[0][:20], FULL)
        assert generator.reused == 19  # the first 19 tokens of a file are enough to go on from


def test_those_not_used_for_longest_make_room(bundle: Path, tmp_path: Path) -> None:
    with filing(bundle, tmp_path) as generator:
        generator.prefill(TALKS[0], FULL)
    (one,) = (path.stat().st_size for path in tmp_path.iterdir())
    with filing(bundle, tmp_path, most=int(2.5 * one)) as generator:
        for talk in TALKS[1:3]:
            generator.prefill(talk, FULL)
            written(generator)
        generator.prefill([*TALKS[0], 5], FULL)  # which is now in use, and the one before not
        assert generator.reused == 150
    with filing(bundle, tmp_path, most=int(2.5 * one)) as generator:
        assert generator.pool.folder is not None
        assert len(generator.pool.folder.files()) == 2
        assert generator.pool.folder.nbytes <= 2.5 * one
        generator.prefill([*TALKS[1], 5], FULL)
        assert generator.reused == 0
    with filing(bundle, tmp_path / "small", most=one // 2) as generator:
        generator.prefill(TALKS[0], FULL)
    assert names(tmp_path / "small") == []


def test_damaged_and_foreign_files_are_one_line_each(
    bundle: Path, shared_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = bundles.named(shared_folder, "llama-g1-d32")[1]
    with filing(other, tmp_path) as generator:
        generator.prefill(TALKS[3], FULL)
    for talk in TALKS[:2]:
        with filing(bundle, tmp_path) as generator:
            generator.prefill(talk, FULL)
    own = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)[1:]
    own[0].write_bytes(own[0].read_bytes()[:-50])  # shows when it is looked for
    data = bytearray(own[1].read_bytes())
    data[len(data) // 2] ^= 4  # shows when it is read
    own[1].write_bytes(data)
    (tmp_path / "note.session").write_text("mine")
    (tmp_path / "note.txt").write_text("mine")
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = socket.gethostname()
    left, living = (
        tmp_path / f".half.session.{here}.{number}.partial" for number in (ended.pid, os.getppid())
    )
    old, elsewhere = (tmp_path / f".half.session.elsewhere.{number}.partial" for number in (1, ended.pid))
    for partial in (left, living, old, elsewhere):  # of servers that were ended, and of some that write
        partial.write_text("half")
    os.utime(old, times=(0, 0))
    caplog.clear()
    with filing(bundle, tmp_path) as generator:
        assert [one.exists() for one in (left, living, old, elsewhere)] == [False, True, False, True]
        assert len(told(caplog)) == 2
        assert all(line.endswith("damaged, or no saved session") for line in told(caplog))
        for talk in TALKS[:2]:
            fresh = generator.prefill([*talk, 5], FULL).copy()
            assert generator.reused == 0
        assert len(told(caplog)) == 3
        generator.reset()
        np.testing.assert_array_equal(generator.prefill([*TALKS[1], 5], FULL, reuse=False), fresh)
    assert (tmp_path / "note.session").read_text() == (tmp_path / "note.txt").read_text() == "mine"
    with filing(other, tmp_path) as generator:
        generator.prefill([*TALKS[3], 5], FULL)
        assert generator.reused == 150  # nobody touched it


@pytest.mark.timeout(600)
def test_what_is_no_file_is_one_line_and_nobody_waits(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with filing(bundle, tmp_path) as generator:
        generator.prefill(TALKS[0], FULL)
    os.mkfifo(tmp_path / "fifo.session")
    (tmp_path / "folder.session").mkdir()
    (tmp_path / "endless.session").symlink_to("/dev/zero")
    (tmp_path / "gone.session").symlink_to("nowhere")
    caplog.clear()
    with filing(bundle, tmp_path) as generator:
        lines = told(caplog)
        assert len(lines) == 4
        for sentence in ("is a FIFO", "is a folder", "is a device", "no such file"):
            assert any(sentence in line for line in lines)
        generator.prefill([*TALKS[0], 5], FULL)
        assert generator.reused == 150


def sharing(bundle: Path, folder: Path, most: int = 1 << 30) -> Generator:
    options = {"folder": folder, "folder_bytes": most, "folder_shared": True}
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", **options)


def answered(generator: Generator, tokens: list[int], policy: PrefillPolicy[Any] = FULL) -> Float32:
    """As `TextModel.complete` ends; returns the prompt's logits."""
    logits = generator.prefill(tokens, policy).copy()
    generator.pool.share(generator.session)
    written(generator)
    return logits


@pytest.mark.parametrize("policy", [SPARSE, FULL], ids=["sparse", "full"])
def test_what_one_server_has_read_the_next_does_not_read_again(
    bundle: Path, tmp_path: Path, policy: PrefillPolicy[Any]
) -> None:
    with Generator.load(bundle, context=CONTEXT, threads=1, device="cpu") as alone:
        alone.prefill(TALKS[0], policy)
        expected = alone.prefill([*TALKS[0], 7, 8], policy).copy()
    with sharing(bundle, tmp_path) as first, sharing(bundle, tmp_path) as second:
        answered(first, TALKS[0], policy)
        np.testing.assert_array_equal(answered(second, [*TALKS[0], 7, 8], policy), expected)
        assert second.reused == 150
        assert len(names(tmp_path)) == 1  # two tokens more are not worth another file
        answered(second, TALKS[1], policy)
        answered(first, [*TALKS[1], 5], policy)
        assert first.reused == 150


def test_servers_that_share_keep_to_the_limit_together(bundle: Path, tmp_path: Path) -> None:
    with filing(bundle, tmp_path) as generator:
        generator.prefill(TALKS[0], FULL)
    (one,) = (path.stat().st_size for path in tmp_path.iterdir())
    with (
        sharing(bundle, tmp_path, int(2.5 * one)) as first,
        sharing(bundle, tmp_path, int(2.5 * one)) as second,
    ):
        for turn, talk in enumerate(TALKS[1:]):
            answered((first, second)[turn % 2], talk)
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2.5 * one
        answered(second, [*TALKS[2], 5])
        assert second.reused == 150
        answered(first, [*TALKS[0], 5])
        assert first.reused == 0  # it made room


def test_files_that_go_while_others_know_them(bundle: Path, tmp_path: Path) -> None:
    with sharing(bundle, tmp_path) as first, sharing(bundle, tmp_path) as second:
        answered(first, TALKS[0])
        folder = second.pool.folder
        assert folder is not None
        folder.refresh()
        (known,) = folder.files()
        known.path.unlink()
        answered(second, [*TALKS[0], 5])
        assert second.reused == 0
        assert [one.tokens.tolist() for one in folder.files()] == [[*TALKS[0], 5]]


def test_a_damaged_file_is_told_once(bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sharing(bundle, tmp_path) as generator:
        answered(generator, TALKS[0])
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes()[:-50])
        caplog.clear()
        for talk in TALKS[1:]:
            answered(generator, talk)
        assert len(told(caplog)) <= 1


def test_a_folder_that_cannot_be_written_costs_a_line(
    bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "conversations"
    with filing(bundle, folder) as generator:
        folder.rmdir()
        folder.write_text("a file, in which not even root can write others")
        generator.prefill(TALKS[0], FULL)
    assert "is not kept" in caplog.text


def test_files_of_one_time_stay_in_the_order_of_their_use(bundle: Path, tmp_path: Path) -> None:
    """Clocks of files are coarse."""
    with sharing(bundle, tmp_path) as generator:
        for talk in TALKS:
            answered(generator, talk)
        folder = generator.pool.folder
        assert folder is not None
        for order in itertools.permutations(folder.files()):
            for one in order:
                folder.used(one)
            for one in order:
                os.utime(one.path, times=(5, 5))
            folder.refresh()
            assert folder.files() == list(order)
