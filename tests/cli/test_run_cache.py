"""h2o-run with other caches than the default's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

PROMPT = "The module defines a class that reads the lines of a file and returns them. " * 8
FLAGS = ("-n", 6, "--ignore-eos", "-c", 600, "--prefill", "full", "--json")
pytestmark = pytest.mark.timeout(600)


def test_what_was_evicted_is_told(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, "--cache", "evicting tokens=64 keep=2")
    report = json.loads(done.stdout)
    assert report["forgotten_tokens"] == report["timings"]["prompt_n"] + 5 - 64 > 0
    assert report["cache"] == {"name": "evicting", "tokens": 64, "recent": "half", "keep": 2}
    assert b"beyond 64 tokens the cache evicts" in done.stderr


def test_what_a_prompt_saw_is_told(h2o: Run, tiny_bundle: Path) -> None:
    flags = ("-n", 1, "-c", 600, "--json", "--prefill")
    policy = "h2o chunk_size=64 local=8 heavy=8 dense_tail=0"
    free, guarded = (
        json.loads(h2o("run", tiny_bundle, "-p", PROMPT, *flags, policy + more).stdout)["seen"]
        for more in ("", " missed=0")
    )
    assert 0.0 < free["least_seen"] <= free["seen"] < 1.0
    assert free["widened"] == 0.0 < guarded["widened"]
    full = json.loads(h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS).stdout)
    assert full["seen"] is None


def test_layers_in_a_file(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    plain = json.loads(h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS).stdout)
    offload = ("--cache", f"offload file={tmp_path / 'rows'} buffers=3")
    report = json.loads(h2o("run", tiny_bundle, "-p", PROMPT, *FLAGS, *offload).stdout)
    assert report["tokens"] == plain["tokens"]
    told = report["cache"]
    assert (told["name"], told["buffers"]) == ("offload", 3)
    assert told["host_bytes"] > told["device_bytes"] > 0
    assert told["stored_bytes"] > 0
    assert 0 <= told["overlap"] <= 1
    assert list(tmp_path.iterdir()) == []
