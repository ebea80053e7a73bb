"""Manifests of version 0.1: they have the settings of all policies, and give the policy that they gave."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import BundleError
from h2o_runtime.policies.prefill import (
    ColumnSum,
    Full,
    PrefillPolicy,
    Query,
    Subquadratic,
    VerticalSlash,
    Window,
)

WRITTEN: dict[str, Any] = {  # by default
    "policy": "h2o",
    "batch_size": 4096,
    "chunk_size": 1024,
    "local": 64,
    "heavy": 448,
    "score": "query",
    "score_heads": "auto",
    "sink": 0,
    "dense_tail": 128,
    "score_tile": 128,
    "score_queries": 32,
    "score_candidates": 2048,
    "score_grow": 4096,
    "score_checks": 2,
    "score_missed": 1.0,
    "score_window": 64,
    "window": 128,
    "global_tokens": 1,
    "log_stride": True,
    "landmarks": True,
    "landmark_block": 64,
    "landmark_count_bias": False,
    "vertical": 512,
    "slash": 1024,
    "line_fraction": 0.0,
    "estimate": "chunk",
}


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    (tmp_path / "bundle").mkdir()
    shutil.copy(tiny_bundle / "manifest.json", tmp_path / "bundle")
    return tmp_path / "bundle"


def read(bundle: Path, settings: dict[str, Any]) -> PrefillPolicy[Any]:
    path = bundle / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prefill": settings}))
    return Manifest.read(bundle).prefill


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, Query(candidates=2048)),
        (
            {
                "batch_size": 2048,
                "chunk_size": 512,
                "local": 32,
                "heavy": 192,
                "score_heads": "kv",
                "dense_tail": 7,
                "score_tile": 64,
                "score_queries": 16,
                "score_candidates": 999,
                "score_grow": "never",
                "score_checks": 3,
                "score_missed": 0.0025,
                "window": 5,  # of a policy that was not chosen
            },
            Query(
                batch_size=2048,
                chunk_size=512,
                local=32,
                heavy=192,
                heads="kv",
                dense_tail=7,
                tile=64,
                queries=16,
                candidates=999,
                grow="never",
                checks=3,
                missed=0.0025,
            ),
        ),
        ({"score": "window", "score_window": 9, "window": 5}, Window(window=9)),
        ({"score": "colsum", "local": 256, "heavy": 256}, ColumnSum(local=256, heavy=256)),
        ({"policy": "full", "batch_size": 512, "chunk_size": 9999}, Full(batch_size=512)),
        (
            {"policy": "minference", "chunk_size": 64, "vertical": 9, "slash": 10, "estimate": "prompt"},
            VerticalSlash(chunk_size=64, vertical=9, slash=10, estimate="prompt"),
        ),
        (
            {"policy": "minference", "vertical": 9, "line_fraction": 0.25},
            VerticalSlash(fraction=0.25),  # which leaves the numbers without effect
        ),
        (
            {
                "policy": "subquadratic",
                "window": 5,
                "global_tokens": 2,
                "log_stride": False,
                "landmark_block": 32,
                "landmark_count_bias": True,
                "score_window": 9,
            },
            Subquadratic(window=5, global_tokens=2, log_stride=False, block=32, count_bias=True),
        ),
        (
            {"policy": "subquadratic", "landmarks": False, "landmark_count_bias": True},
            Subquadratic(block=0),
        ),
    ],
)
def test_it_is_the_policy_that_it_was(
    bundle: Path, changes: dict[str, Any], policy: PrefillPolicy[Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert read(bundle, WRITTEN | changes) == policy
    assert not caplog.records


@pytest.mark.parametrize(
    ("chunk", "local", "least"), [(1024, 64, 512), (64, 4, 60), (32, 31, 31), (4096, 600, 600)]
)
def test_memory_that_grew_from_the_beginning_still_does(
    bundle: Path, chunk: int, local: int, least: int
) -> None:
    """heavy=auto: a quarter of the past, at least 512 keys; today at most 15/8 of a chunk."""
    policy = read(bundle, WRITTEN | {"heavy": "auto", "chunk_size": chunk, "local": local})
    assert isinstance(policy, Query)
    most = chunk * 15 // 8
    for past in (0, 1, 8 * chunk, 1 << 20):
        assert policy.memory_at(past) == max(least, min(past // 4, most))
        assert policy.candidates_at(past) == max(2048, 5 * policy.memory_at(past))


def test_sinks_that_are_gone_are_told(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(bundle, WRITTEN | {"sink": 4}) == Query(candidates=2048)
        assert read(bundle, WRITTEN | {"sink": 4, "policy": "full"}) == Full()
    assert [record.getMessage() for record in caplog.records] == [
        "the bundle asks for sink=4, which is gone: its prompts are read without"
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (WRITTEN | {"local": 1024}, "must be below chunk_size"),
        (WRITTEN | {"policy": "sparse"}, "policy must be one of h2o, full"),
        (WRITTEN | {"policy": ["h2o"]}, "policy must be one of h2o, full"),
        (WRITTEN | {"score": ["query"]}, "score must be one of query"),
        ({"policy": ["h2o"]}, "policy must be one of h2o, full"),
        ({"policy": "h2o", "score": {}}, "score must be one of query"),
        ([], "not an object"),
    ],
)
def test_what_is_wrong_is_one_sentence(bundle: Path, settings: Any, says: str) -> None:
    with pytest.raises(BundleError, match=rf"manifest\.json: prefill: .*{says}.*export the checkpoint again"):
        read(bundle, settings)


@pytest.mark.parametrize(
    "policy", [VerticalSlash(vertical=9, fraction=0.5), Subquadratic(block=0), Query(missed=0.0), Full()]
)
def test_what_is_written_today_is_read_back(bundle: Path, policy: PrefillPolicy[Any]) -> None:
    manifest = Manifest.read(bundle)
    manifest.model_copy(update={"prefill": policy}).write(bundle)
    assert str(Manifest.read(bundle).prefill) == str(policy)
