"""Prefill policies at the server's edge: what a policy says of its fields, clients are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Serve
from tests.server.running import Server, error_of
from tests.server.typed_policy import install

from h2o_runtime.components.options import options_of, spelled
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy, Query


def described(server: Server) -> dict[str, Any]:
    """The members of a request's `prefill`, as /openapi.json has them."""
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    (given,) = (
        one for one in schemas["CompletionRequest"]["properties"]["prefill"]["anyOf"] if "anyOf" in one
    )
    text, settings = given["anyOf"]
    assert text == {"type": "string", "maxLength": 1000}
    assert settings["additionalProperties"] == {"type": "null"}
    members: dict[str, Any] = settings["properties"]
    return members


def test_every_setting_is_described(server: Server) -> None:
    members = described(server)
    assert members["policy"] == {"enum": [*PREFILL.names, "guarded", None]}
    for kind in PREFILL.kinds:
        for option in options_of(kind):
            assert {"type": "null"} in members[option.name]["anyOf"]
    assert members["heavy"]["anyOf"][0] == {
        "description": "Heavy hitters H: earlier tokens with the highest scores.",
        "type": "integer",
        "minimum": 0,
        "maximum": 2**31 - 1,
    }
    meanings = [one.get("description", "")[:12] for one in members["window"]["anyOf"]]
    assert meanings == ["Last queries", "Earlier toke", ""]  # of the score rule, and of subquadratic


def test_forms_offer_every_policy_and_preset(server: Server) -> None:
    forms = server.get("/props").json()["prefill_forms"]
    assert [form["text"] for form in forms] == [
        *("", *(spelled(kind()) for kind in PREFILL.kinds[1:]), "guarded")
    ]
    assert forms[0]["settings"] == PREFILL.settings_of(Query())
    for form in forms[1:]:
        assert PREFILL.settings_of(PREFILL.read(form["text"])) == form["settings"]
        assert {one["name"] for one in form["options"]} <= set(form["settings"])
    full = next(form for form in forms if form["text"] == "full")
    assert full["options"] == []
    heavy = next(one for one in forms[0]["options"] if one["name"] == "heavy")
    assert (heavy["label"], heavy["type"], heavy["least"]) == ("Heavy hitters", "integer", 0)


def server_policy(given: Any) -> PrefillPolicy[Any]:
    """The policy of a request to a server with the default."""
    return PREFILL.read(given, Query()) if isinstance(given, str) else PREFILL.make(given, Query())


def _seen(seen: dict[str, float]) -> str:
    return f", {100 * seen['seen']:.1f} % of attention seen, {100 * seen['missed']:.1f} % missed"


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        ({}, "Chunks of 1,024, memory 512 to 1,920"),
        ({"prefill": {"chunk_size": 64, "local": 8, "heavy": 24}}, "Chunks of 64, memory 32 to 120"),
        ({"prefill": "h2o score=window chunk_size=64 local=8 heavy=24 window=8"}, "Chunks of 64, memory 32"),
        ({"prefill": {"policy": "full"}}, "Full attention"),
    ],
)
def test_a_configuration_in_a_few_words(server: Server, given: dict[str, Any], summary: str) -> None:
    told = server.post("/props/prefill", given).json()
    policy = server_policy(given.get("prefill", {}))
    assert told == {"prefill": PREFILL.settings_of(policy), "text": str(policy), "summary": summary}
    answered = server.complete([7] * 400, **given).json()["h2o"]
    assert answered["prefill"] == told["prefill"]
    assert answered["summary"] == summary + (_seen(answered["seen"]) if answered["seen"] else "")
    assert answered["exact"] is ("of 64" not in summary)  # in one chunk everything is seen
    if not given:
        props = server.get("/props").json()
        assert (props["prefill"], props["prefill_summary"]) == (told["prefill"], summary)


def test_settings_without_a_name_change_the_servers_own(serve: Serve) -> None:
    server = serve("--prefill", "h2o score=window window=8 local=16 heavy=16")

    def told(prefill: Any) -> Any:
        return server.post("/props/prefill", {"prefill": prefill}).json()["text"]

    assert told("heavy=9") == told({"heavy": 9}) == "h2o score=window local=16 heavy=9 window=8"
    assert told("h2o heavy=9") == told({"policy": "h2o", "heavy": 9}) == "h2o score=query heavy=9"
    assert told("score=query") == "h2o score=query local=16 heavy=16"
    assert told("guarded heavy=9") == "h2o score=query heavy=9 missed=0.0025"


def test_another_policys_setting_is_refused_with_its_policy(server: Server) -> None:
    error = error_of(server.post("/props/prefill", {"prefill": {"vertical": 64}}), 400)
    assert error["param"] == "prefill.vertical"
    assert error["message"] == "prefill: h2o score=query has no vertical: it belongs to minference"


def test_another_packages_policy(serve: Serve, tmp_path: Path) -> None:
    """Nothing of the server knows it, and its fields are there."""
    server = serve("--ctx-size", 64, environment=install(tmp_path))
    members = described(server)
    types = {name: members[name]["anyOf"][0]["type"] for name in ("stride", "share", "careful")}
    assert types == {"stride": "integer", "share": "number", "careful": "boolean"}
    assert "typed" in members["policy"]["enum"]
    chosen = {"policy": "typed", "stride": 4.0, "share": 1, "careful": True}
    answer = server.complete(prefill=chosen)
    assert answer.status_code == 200, answer.text
    told = answer.json()["h2o"]
    assert told["prefill"] | chosen == told["prefill"]
    assert (told["exact"], told["summary"]) == (False, "Every 4th token")
    for wrong in ({"stride": 0}, {"stride": True}, {"share": -1}, {"share": "1"}, {"careful": 1}):
        (name,) = wrong
        assert error_of(server.complete(prefill=chosen | wrong), 400)["param"] == f"prefill.{name}"
