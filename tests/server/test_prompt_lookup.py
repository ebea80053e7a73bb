"""Requests whose answers are read ahead: the same answers, told figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bundles import export, random_ids
from tests.drafting import save_drafting
from tests.family_models import VOCAB
from tests.server.conftest import Serve
from tests.server.running import Server

TEXT = "one two three four five one two three four five one two three four five one two"


@pytest.fixture(scope="module")
def reads_ahead(tiny_bundle: Path) -> Iterator[Server]:
    with Server(
        tiny_bundle, "--ctx-size", 512, "--compute", "dense_form=native", "--cache", "paged"
    ) as server:
        yield server


def completion(server: Server, **more: Any) -> dict[str, Any]:
    options = {"max_tokens": 60, "temperature": 0, "cache_prompt": False, "logprobs": 2} | more
    response = server.complete(TEXT, **options)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


KEYS = ["the_name_of_the_lighthouse", "number_of_whales_near_the_harbour"]
SCHEMA = {
    "type": "object",
    "properties": {KEYS[0]: {"type": "string", "maxLength": 4}, KEYS[1]: {"type": "boolean"}},
    "required": KEYS,
    "additionalProperties": False,
}
STRUCTURED = {"temperature": 0.8, "seed": 5, "n": 2, "json_schema": SCHEMA}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.8, "seed": 5, "n": 2},
        {"stop": ["e"]},
        STRUCTURED,
        STRUCTURED | {"stop": ["light"], "frequency_penalty": 0.5},
    ],
)
def test_an_answer_is_the_same_and_its_drafts_are_counted(reads_ahead: Server, more: dict[str, Any]) -> None:
    before = reads_ahead.metric("h2o_drafted_tokens_total"), reads_ahead.metric("h2o_accepted_tokens_total")
    ahead, plain = (completion(reads_ahead, speculate=name, **more) for name in (None, "off"))
    assert ahead["choices"] == plain["choices"]
    timings = ahead["timings"]
    assert (plain["timings"]["draft_n"], plain["timings"]["draft_n_accepted"]) == (0, 0)
    if not more or "json_schema" in more:
        assert timings["draft_n"] >= timings["draft_n_accepted"] > 0
    assert reads_ahead.metric("h2o_drafted_tokens_total") == before[0] + timings["draft_n"]
    assert reads_ahead.metric("h2o_accepted_tokens_total") == before[1] + timings["draft_n_accepted"]


@pytest.fixture(scope="module")
def drafts_itself(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("drafting")
    bundle = export(save_drafting(folder / "checkpoint", right=0.02), folder / "bundle")
    with Server(bundle, "--ctx-size", 256, "--compute", "dense_form=native", "--slots", 2) as server:
        yield server


@pytest.mark.parametrize("by", ["mtp", "auto"])
def test_answers_that_the_model_drafts_run_side_by_side(drafts_itself: Server, by: str) -> None:
    prompts = [random_ids(length, length, VOCAB).tolist() for length in (9, 40)]
    more = {"max_tokens": 60, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    answers = [
        drafts_itself.complete(prompts, speculate=speculate, **more).json() for speculate in (by, "off")
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    timings = answers[0]["timings"]
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 10
    assert drafts_itself.get("/props").json()["speculate"] == "auto"


def test_a_server_tells_whether_it_reads_ahead(reads_ahead: Server, serve: Serve) -> None:
    props = reads_ahead.get("/props").json()
    assert (props["speculate"], props["speculate_off_because"]) == ("lookup", None)
    other = serve("--ctx-size", 512, "--decode", "quest").get("/props").json()
    assert other["speculate"] == "off"
    assert "quest" in other["speculate_off_because"]
