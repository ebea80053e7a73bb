"""A server with several slots, over HTTP: what runs at once, what waits, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.server.conftest import Serve
from tests.server.running import Pace, Server, events, wait_for

from h2o_cli.serve import main
from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous, Evicting
from h2o_runtime.errors import ConfigError

SMALL = ("-ub", 64, "--h2o-local", 16, "--h2o-heavy", 16)
LONG = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def pace(tmp_path_factory: pytest.TempPathFactory) -> Pace:
    return Pace(tmp_path_factory.mktemp("pace"))


@pytest.fixture(scope="module")
def three(tiny_bundle: Path, pace: Pace) -> Iterator[Server]:
    with Server(tiny_bundle, "--ctx-size", 512, "--slots", "3 piece=64", *SMALL, code=pace.code) as server:
        yield server


def test_answers_at_once_are_those_of_one_after_the_other(three: Server) -> None:
    asked = [{"prompt": [7 + one] * (60 * one + 1), "max_tokens": 40, "temperature": 0} for one in range(3)]
    single = [three.complete(**one).json()["choices"][0]["text"] for one in asked]
    with ThreadPoolExecutor(3) as pool:
        together = pool.map(lambda one: three.complete(**one, cache_prompt=False).json(), asked * 3)
    assert [one["choices"][0]["text"] for one in together] == single * 3


def test_slots_and_figures_tell_who_is_served(three: Server, pace: Pace) -> None:
    three.wait_until_idle()
    pace.set(0.05)
    with three.client() as client:
        body = {"prompt": "Once", "stream": True, **LONG}
        with (
            client.stream("POST", "/v1/completions", json=body) as first,
            client.stream("POST", "/v1/completions", json=body) as second,
        ):
            streams = [events(one.iter_lines()) for one in (first, second)]
            for stream in streams:
                next(stream)
            slots = three.get("/slots").json()
            assert [slot["id"] for slot in slots] == [0, 1, 2]
            busy = [slot for slot in slots if slot["is_processing"]]
            assert len(busy) == 2
            assert len({slot["id_task"] for slot in busy}) == 2
            assert three.metric("h2o_busy") == 2
            assert sum(three.metric("h2o_slot_busy", slot=str(one)) for one in range(3)) == 2
            assert three.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 2
            assert three.get("/props").json()["total_slots"] == 3
            # A short request is answered beside them, and neither has ended.
            assert three.complete(max_tokens=2).status_code == 200
            wait_for(lambda: three.metric("h2o_busy") == 2)
    pace.go()
    wait_for(lambda: three.metric("h2o_busy") == 0)  # both have left
    assert three.metric("h2o_requests_total", outcome="cancelled") == 2


def test_choices_run_side_by_side_and_read_their_prompt_once(three: Server, pace: Pace) -> None:
    three.wait_until_idle()
    asked = {
        "prompt": [9] * 200,
        "max_tokens": 30,
        "temperature": 1,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    alone = [three.complete(**asked, seed=seed).json()["choices"][0]["text"] for seed in range(5)]
    read = three.metric("h2o_prompt_tokens_total")
    pace.set(0.05)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            lambda: three.client().post("/v1/completions", json={**asked, "n": 5, "seed": 0})
        )
        wait_for(lambda: three.metric("h2o_busy") == 3)
        pace.go()
        told = answer.result().json()
    assert [choice["text"] for choice in told["choices"]] == alone
    assert told["usage"]["prompt_tokens"] == 200
    assert three.metric("h2o_prompt_tokens_total") == read + 200
    prompts = [[9] * 150 + [one] * 40 for one in range(4)]
    separate = [three.complete(**asked | {"prompt": one, "seed": 1}).json() for one in prompts]
    together = three.complete(**asked | {"prompt": prompts, "seed": 1}).json()
    texts = [one["choices"][0]["text"] for one in separate]
    assert [choice["text"] for choice in together["choices"]] == texts


def test_choices_of_one_leave_slots_to_others(three: Server) -> None:
    """And a stream of several choices tells of each as it comes."""
    three.wait_until_idle()
    body = {"prompt": "Once", "n": 24, "stream": True, **LONG, "temperature": 1, "max_tokens": 30}
    with three.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        stream = events(response.iter_lines())
        indices = {chunk["choices"][0]["index"] for _, chunk in zip(range(60), stream, strict=False)}
        assert len(indices) > 1
        assert three.complete(max_tokens=1).status_code == 200
    three.wait_until_idle()


@pytest.mark.parametrize("slots", ["0", "-1", "many", "100000"])
def test_a_number_of_slots_that_makes_no_sense_is_refused(slots: str) -> None:
    """Before anything is loaded."""
    done = CliRunner().invoke(main, [".", "--slots", slots])
    assert done.exit_code == 2
    assert "Invalid value for '--slots'" in done.output


def test_auto_takes_what_the_memory_holds(serve: Serve) -> None:
    server = serve("--slots", "auto", "--ctx-size", 256)
    assert server.get("/props").json()["total_slots"] == 8


@pytest.mark.parametrize("cache", [Contiguous(), Evicting(tokens=200)], ids=["contiguous", "evicting"])
def test_memory_that_holds_no_slot_is_refused(tiny_bundle: Path, cache: Cache) -> None:
    with pytest.raises(ConfigError, match="one slot takes 1 MiB for their rows, and their memory is 0 MiB"):
        Generator.load(tiny_bundle, context=256, slots=None, slot_bytes=1 << 19, cache=cache)


def test_auto_is_one_slot_for_a_cache_that_evicts(serve: Serve) -> None:
    server = serve("--slots", "auto", "--ctx-size", 256, "--cache", "evicting tokens=64", "--prefill", "full")
    assert server.get("/props").json()["total_slots"] == 1


@pytest.mark.parametrize(
    ("given", "of"), [({"slot_bytes": 11 << 20}, "their memory"), ({}, "the free memory")]
)
def test_more_slots_than_the_memory_holds_are_refused(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, int], of: str
) -> None:
    if not given:
        monkeypatch.setattr("h2o_runtime.execution.footprint.available_bytes", lambda: 11 << 20)
    with pytest.raises(ConfigError, match=f"`slots=8` take 12 MiB for their rows, and {of} is 11 MiB"):
        Generator.load(tiny_bundle, context=256, slots=8, **given)
