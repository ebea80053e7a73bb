"""What other packages add: a prefill policy, a decode policy and a cache, each one file and one registration.

They lie in `toys`, which is an installed package as far as Python's metadata goes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import PREFILL, Full, PrefillPolicy, Query, Window
from tests.bundles import random_ids
from tests.forked import commands
from tests.server.running import Server

TOYS = Path(__file__).parent / "toys"
ENVIRONMENT = {"PYTHONPATH": str(TOYS)}


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOYS))


def run(module: str, *arguments: object, status: int = 0) -> str:
    """A command with the toys installed → its standard output."""
    name = module.removeprefix("h2o_cli.")
    done = commands(name, **ENVIRONMENT, COLUMNS="200").run(name, [*map(str, arguments)], None, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return (done.stdout if status == 0 else done.stderr).decode()


def answer(bundle: Path, *flags: object) -> dict[str, Any]:
    prompt = "The quick brown fox jumps over the lazy dog. " * 30
    report: dict[str, Any] = json.loads(
        run(
            "h2o_cli.run", bundle, "-p", prompt, "-n", 8, "--temperature", 0, "--threads", 1, "--json", *flags
        )
    )
    return report


# --- A prefill policy -------------------------------------------------------------------------------------


def test_every_command_tells_its_settings() -> None:
    bundles = {"h2o_cli.run": ["bundle"], "h2o_cli.serve": ["bundle"], "h2o_cli.export": ["checkpoint"]}
    for command, names in bundles.items():
        text = run(command, *names, "--prefill", "help toy")
        assert text.splitlines()[0].split() == ["--prefill", '"toy"', "every", "k-th"]
        assert "every=8 Of the past each such token is seen." in " ".join(text.split())
        assert "h2o" not in text


def test_h2o_run_reads_with_it_and_says_so(tiny_bundle: Path) -> None:
    report = answer(tiny_bundle, "--prefill", "toy every=5 block=32")
    assert report["prefill"] == {"policy": "toy", "batch_size": 4096, "block": 32, "every": 5, "first": 0}
    assert report["prefill_ms"]["blocks"] > 0
    assert "phase1" not in report["prefill_ms"]


def test_the_server_takes_it_in_requests_and_shows_it_in_its_form(tiny_bundle: Path) -> None:
    server = Server(tiny_bundle, environment=ENVIRONMENT)
    try:
        server.wait_until_ready()
        schema = json.dumps(server.get("/openapi.json").json())
        assert "Of the past each such token is seen." in schema
        assert json.dumps([*PREFILL.names, "toy"]).rstrip("]") in schema
        form = {one["text"]: one for one in server.get("/props").json()["prefill_forms"]}["toy"]
        assert form["title"] == "every k-th"
        assert form["settings"] == {"policy": "toy", "batch_size": 4096, "block": 64, "every": 8, "first": 0}
        labels = {one["name"]: one["label"] for one in form["options"]}
        assert labels == {"block": "Block", "every": "Every k-th token", "first": "First"}
        for prefill in ({"policy": "toy", "every": 2}, "toy every=2"):
            reply = server.complete("Once upon a time", max_tokens=2, prefill=prefill)
            assert reply.status_code == 200
            assert reply.json()["h2o"]["prefill"]["every"] == 2
        bad = server.complete("Once", prefill={"policy": "toy", "every": 0})
        assert bad.status_code == 400
    finally:
        server.stop()


def test_h2o_bench_measures_it_beside_full_attention(tiny_bundle: Path) -> None:
    flags = ("--lengths", 256, "--repetitions", 1, "--peers", "none", "--prefill", "toy", "--json")
    report = json.loads(run("h2o_cli.bench", "prefill", tiny_bundle, *flags))
    rows = {row["name"]: row for row in report["rows"]}
    assert set(rows) == {"toy", "full"}
    assert rows["toy"]["blocks_s"] > 0
    assert "every=8" in rows["toy"]["settings"]
    assert rows["toy"]["floor_s"] < rows["full"]["floor_s"]


def test_h2o_eval_measures_it_beside_full_attention_and_sees_its_lists(tiny_bundle: Path) -> None:
    toy, dense = "toy block=32 first=3", "toy block=32 every=1 first=3"
    flags = ("-n", 256, "--prefill", toy, "--beside", "every=1", "--baselines", "none", "--decode-tokens", 4)
    report = json.loads(run("h2o_cli.eval", tiny_bundle, *flags, "--json"))
    rows = {row["contestant"]: row for row in report["summary"]}
    assert set(rows) == {"full", toy, dense}
    assert rows[toy]["settings"] == "toy batch_size=4096 block=32 every=8 first=3"
    assert abs(rows[dense]["increase"]) < 1e-4 < rows[toy]["divergence"]
    assert rows[toy]["past_share"] < rows[dense]["past_share"] == pytest.approx(1.0)


# --- A score rule -----------------------------------------------------------------------------------------

SMALL = "h2o score=every chunk_size=32 batch_size=64 local=4 heavy=8"


def test_a_score_rule_has_its_settings_and_checks(tiny_bundle: Path) -> None:
    text = " ".join(run("h2o_cli.run", "bundle", "--prefill", "help h2o").split())
    assert '--prefill "h2o score=every" sparse: every k-th token' in text
    report = answer(tiny_bundle, "--prefill", f"{SMALL} every=3")
    assert report["prefill"] | {"policy": "h2o", "score": "every", "every": 3} == report["prefill"]

    def refused(text: str) -> str:
        return run("h2o_cli.run", tiny_bundle, "-p", "x", "--prefill", text, status=2)

    assert "every must be at least 1" in refused("h2o score=every every=0")
    assert "h2o score=query has no every: it belongs to h2o score=every and toy" in refused("h2o every=3")
    assert "h2o score=every has no tile: it belongs to h2o score=query" in refused("h2o score=every tile=3")


def test_a_score_rules_bundle_is_compared(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "tiny-llama"
    sizes = ("--prefill", f"{SMALL} every=3")
    run("h2o_cli.export", example, "-o", tmp_path / "bundle", *sizes, "--no-validate")
    prefill = json.loads((tmp_path / "bundle" / "manifest.json").read_text())["prefill"]
    assert (prefill["score"], prefill["every"]) == ("every", 3)
    stages = ("--stage", "attention", "--stage", "pipeline", "-n", 150, "--against", "functions", "--json")
    report = json.loads(run("h2o_cli.compare", tmp_path / "bundle", *stages, *sizes))
    policy = "h2o score=every batch_size=64 chunk_size=32 local=4 heavy=8 every=3"
    assert {"phase1", "phase2", "full", policy} <= {row["graph"] for row in report["rows"]}
    assert report["passed"]


# --- A decode policy --------------------------------------------------------------------------------------


def test_a_decode_policy_has_its_settings(tiny_bundle: Path) -> None:
    everything = answer(tiny_bundle, "--decode", "recent recent=4000")
    assert everything["tokens"] == answer(tiny_bundle)["tokens"]
    assert everything["decode"] == {"name": "recent", "recent": 4000}
    assert answer(tiny_bundle, "--decode", "recent recent=1")["tokens"] != everything["tokens"]


# --- A cache ----------------------------------------------------------------------------------------------

POLICIES = (
    Full(),
    Query(chunk_size=64, batch_size=128, local=16, heavy=16, dense_tail=10),
    Window(chunk_size=64, batch_size=64, local=16, heavy=16, window=8, heads="query"),
)


def everything(generator: Generator, policy: PrefillPolicy[Any]) -> list[np.ndarray[Any, Any]]:
    """A prompt, an answer, another turn, and another question on the same document."""
    ids, found = random_ids(200, seed=3, vocab=2000), []
    found.append(generator.prefill(ids, policy))
    found += [generator.decode(token) for token in (5, 6, 7)]
    found.append(generator.report().last)
    for turn in (100, 20):
        more = np.concatenate([ids, [5, 6, 7], random_ids(turn, seed=turn, vocab=2000)])
        found.append(generator.prefill(more, policy))
    found.append(generator.prefill(np.concatenate([ids[:150], [9] * 40]), policy))
    found.append(generator.boundary_memory())
    return found


@pytest.mark.parametrize("attention", ["native", "functions"])
def test_the_order_of_its_rows_changes_no_bit(toys: None, tiny_bundle: Path, attention: Any) -> None:
    from toy_cache import Backwards

    settings: dict[str, Any] = {"context": 512, "attention": attention, "threads": 1}
    with (
        Generator.load(tiny_bundle, **settings) as plain,
        Generator.load(tiny_bundle, cache=Backwards(), **settings) as other,
    ):
        for policy in POLICIES:
            for ours, theirs in zip(everything(other, policy), everything(plain, policy), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            plain.reset()
            other.reset()


def test_a_cache_has_its_name(tiny_bundle: Path) -> None:
    report = answer(tiny_bundle, "--cache", "backwards")
    assert report["cache"] == {"name": "backwards"}
    assert report["tokens"] == answer(tiny_bundle)["tokens"]
