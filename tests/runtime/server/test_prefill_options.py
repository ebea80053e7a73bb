"""Prefill policies' options at the server's edge: what a policy says of its fields, clients are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runtime.server.conftest import Serve
from tests.runtime.server.running import Server, error_of
from tests.runtime.server.typed_policy import install

from h2o_runtime import PrefillConfig
from h2o_runtime.policies.prefill import PREFILL


def described(server: Server) -> dict[str, Any]:
    """The members of a request's `prefill`, as /openapi.json has them."""
    schema = server.get("/openapi.json").json()["components"]["schemas"]["Prefill"]
    assert schema["additionalProperties"] == {"type": "null"}
    members: dict[str, Any] = schema["properties"]
    return members


def test_every_option_is_described(server: Server) -> None:
    members, form = described(server), server.get("/props").json()["prefill_options"]
    assert list(members) == [*(option.name for option in PREFILL.options), "quality"]
    assert [entry["name"] for entry in form] == [option.name for option in PREFILL.options]
    for option, entry in zip(PREFILL.options, form, strict=True):
        kind, *words, absent = members[option.name]["anyOf"]
        assert absent == {"type": "null"}
        assert [word["const"] for word in words] == entry["words"] == list(option.words)
        assert kind["type"] == entry["type"]
        assert members[option.name]["description"] == entry["meaning"] == option.meaning
        assert kind.get("enum") == (list(entry["choices"]) if entry["choices"] else None)
        assert entry["default"] == getattr(PrefillConfig(), option.name)


def test_options_know_their_policies(server: Server) -> None:
    form = {entry["name"]: entry for entry in server.get("/props").json()["prefill_options"]}
    assert form["policy"]["choices"] == {policy.name: policy.title for policy in PREFILL}
    assert form["policy"]["policies"] == form["batch_size"]["policies"] == list(PREFILL.names)
    assert form["heavy"]["policies"] == ["h2o"]
    assert (form["chunk_size"]["least"], form["heavy"]["label"]) == (2, "Heavy hitters")


def _seen(seen: dict[str, float]) -> str:
    return f", {100 * seen['seen']:.1f} % of attention seen, {100 * seen['missed']:.1f} % missed"


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        ({}, "Chunks of 1,024, memory 512 to 960"),
        ({"prefill": {"chunk_size": 64, "local": 8, "heavy": 24}}, "Chunks of 64, memory 32 to 60"),
        ({"prefill": {"heavy": "auto"}}, "Chunks of 1,024, memory 512 to 960"),
        ({"prefill": {"policy": "full"}}, "Full attention"),
    ],
)
def test_a_configuration_in_a_few_words(server: Server, given: dict[str, Any], summary: str) -> None:
    told = server.post("/props/prefill", given).json()
    assert told == {"prefill": PrefillConfig(**given.get("prefill", {})).settings, "summary": summary}
    answered = server.complete([7] * 400, **given).json()["h2o"]
    assert answered["prefill"] == told["prefill"]
    assert answered["summary"] == summary + (_seen(answered["seen"]) if answered["seen"] else "")
    assert answered["exact"] is ("of 64" not in summary)  # in one chunk everything is seen
    if not given:
        props = server.get("/props").json()
        assert (props["prefill"], props["prefill_summary"]) == (told["prefill"], summary)


def test_a_quality_stands_for_settings(server: Server) -> None:
    def told(**prefill: Any) -> Any:
        return server.post("/props/prefill", {"prefill": prefill})

    fast = told(quality="fast", sink=4).json()["prefill"]
    assert fast == PrefillConfig(chunk_size=512, heavy=192, score_grow="never", sink=4).settings
    assert told(quality="exact").json()["summary"] == "Full attention"
    error = error_of(told(quality="fast", heavy=100), 400)
    assert error["param"] == "prefill.heavy"
    assert "`quality=fast` sets `heavy=192`, but `heavy=100` was given too" in error["message"]


def test_another_policys_option_is_refused_with_its_policy(server: Server) -> None:
    error = error_of(server.post("/props/prefill", {"prefill": {"vertical": 64}}), 400)
    assert error["param"] == "prefill.vertical"
    assert (
        error["message"] == "prefill: vertical has no effect with policy h2o: it belongs to policy minference"
    )


@pytest.mark.parametrize(
    ("values", "param"), [({"heavy": 1024}, "prefill.heavy"), ({"local": 1.5}, "prefill.local")]
)
def test_what_contradicts_has_no_summary(server: Server, values: dict[str, Any], param: str) -> None:
    assert error_of(server.post("/props/prefill", {"prefill": values}), 400)["param"] == param


def test_another_packages_policy(serve: Serve, tmp_path: Path) -> None:
    """Nothing of the server knows it, and its fields are there."""
    server = serve("--ctx-size", 64, environment=install(tmp_path))
    members = described(server)
    types = {name: members[name]["anyOf"][0]["type"] for name in ("stride", "share", "careful")}
    assert types == {"stride": "integer", "share": "number", "careful": "boolean"}
    assert "typed" in members["policy"]["anyOf"][0]["enum"]
    chosen = {"policy": "typed", "stride": 4.0, "share": 1, "careful": True}
    answer = server.complete(prefill=chosen)
    assert answer.status_code == 200, answer.text
    told = answer.json()["h2o"]
    assert told["prefill"] | chosen == told["prefill"]
    assert (told["exact"], told["summary"]) == (False, "Every 4th token")
    for wrong in ({"stride": 0}, {"stride": True}, {"share": -1}, {"share": "1"}, {"careful": 1}):
        (name,) = wrong
        assert error_of(server.complete(prefill=chosen | wrong), 400)["param"] == f"prefill.{name}"
