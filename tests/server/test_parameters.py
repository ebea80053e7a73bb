"""Every parameter with every kind of wrong value: one 400 that names it, and nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.running import Server, error_of

HUGE = 10**30
USER = {"role": "user", "content": "Hello."}
CHAT = {"messages": [USER], "max_tokens": 2}
COMPLETION = {"prompt": "Once", "max_tokens": 2}
PATHS = {"chat": ("/v1/chat/completions", CHAT), "completion": ("/v1/completions", COMPLETION)}


ROUTER_KEYS = {  # as routers write them out
    **dict.fromkeys(("no_stop_trim", "include_stop_str_in_output", "return_hidden_states"), False),
    **dict.fromkeys(
        ("return_token_ids", "return_tokens_as_token_ids", "use_beam_search", "ignore_eos"), False
    ),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), True),
    **dict.fromkeys(("separate_reasoning", "stream_reasoning", "include_reasoning"), True),
    **dict.fromkeys(("min_tokens", "priority"), 0),
    "stop_token_ids": [],
    "repetition_penalty": 1.0,
    "min_p": 0.0,
}


def wrong(name: str, *values: Any, param: str | None = None) -> list[Any]:
    return [
        pytest.param(name, value, param or name, id=f"{name}-{str(value)[:24]}-{index}")
        for index, value in enumerate(values)
    ]


# Of both kinds of request, which have these parameters from one class

BOTH = [
    *wrong("model", 1, "m" * 1001),
    *wrong("stream", 1, "true"),
    *wrong("stream_options", 1, {}),  # the last without stream
    *wrong("stream_options", {"include_usage": "yes"}, param="stream_options.include_usage"),
    *wrong("stream_options", {"include_obfuscation": True}, param="stream_options.include_obfuscation"),
    *wrong("stream_options", {"what": 1}, param="stream_options.what"),
    *wrong("return_progress", 1, True),  # the last without stream
    *wrong("n", 0, 65, 1.5, "1", True),
    *wrong("json_schema", 1, {"type": "person"}, {"enum": []}),
    *wrong("grammar", 1, "", "x" * 40_000, "root ::= no-such-rule", 'x ::= "a"', "root ::= " + "(" * 5000),
    *wrong("grammar", 'root ::= "a" root'),
    *wrong("max_tokens", -2, 1.5, "2", 2**31, HUGE, True, 1e400),
    *wrong("temperature", -0.1, 100.1, "1", True, 1e400, HUGE),
    *wrong("top_p", -0.1, 1.1, "1", True),
    *wrong("top_k", -2, 1.5, "1", HUGE),
    *wrong("min_p", -0.1, 1.1, "0"),
    *wrong("seed", -2, 1.5, "1", 1e400),
    *wrong("stop", 1, "", "x" * 1001, ["x"] * 17),
    *wrong("stop", ["x", 1], param="stop.1"),
    *wrong("stop", [""], param="stop.0"),
    *wrong("presence_penalty", "1", -101, 101, 1e400),
    *wrong("frequency_penalty", "1", -101, 101),
    *wrong("repetition_penalty", 0, 101, "1"),
    *wrong("repeat_last_n", -2, 1.5, HUGE),
    *wrong("logit_bias", [], {"4096": 1}),
    *wrong("logit_bias", {"x": 1}, param="logit_bias.x"),
    *wrong("logit_bias", {"5": "1"}, {"5": 1e400}, {"5": -1e7}, param="logit_bias.5"),
    *wrong("ignore_eos", 1),
    *wrong("id_slot", 1, -2, "0"),
    *wrong("no_stop_trim", True, 0),
    *wrong("skip_special_tokens", False),
    *wrong("return_hidden_states", True),
    *wrong("min_tokens", 1),
    *wrong("priority", 5),
    *wrong("stop_token_ids", [2]),
    *wrong("prefill", 1, []),
    *wrong("prefill", {"policy": "sparse"}, {"policy": 1}, "", "h2o heavy", param="prefill.policy"),
    *wrong(
        "prefill", {"chunk_size": 1}, {"chunk_size": "8"}, {"chunk_size": 8192}, param="prefill.chunk_size"
    ),
    *wrong("prefill", {"local": 0}, {"local": 1.5}, {"policy": "full", "local": 128}, param="prefill.local"),
    *wrong("prefill", {"heavy": -1}, {"heavy": 1024}, {"chunk_size": 64}, param="prefill.heavy"),
    *wrong("prefill", {"score": "mean"}, param="prefill.score"),
    *wrong("prefill", {"score": "window", "window": 257}, param="prefill.window"),
    *wrong("prefill", "h2o hevy=3", param="prefill.hevy"),
    *wrong("prefill", "minference vertical=9 fraction=0.5", param="prefill.vertical"),
    *wrong("prefill", {"decode": "full"}, param="prefill.decode"),
    *wrong("user", 1),
    *wrong("metadata", "x"),
    *wrong("store", "yes", 0),
    *wrong("service_tier", 1),
    *wrong("safety_identifier", 1),
    *wrong("prompt_cache_key", 1),
    *wrong("cache_prompt", 1),
    *wrong("speculate", True, "on"),
]


def function(**more: Any) -> list[Any]:
    return [{"type": "function", "function": more}]


def shape(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


CHAT_ONLY = [
    *wrong("messages", None, "Hello.", {}, []),
    *wrong("messages", [1], [[]], param="messages.0"),
    *wrong("messages", [{"content": "x"}], [{**USER, "role": "robot"}], param="messages.0.role"),
    *wrong("messages", [USER, {"role": "user"}], param="messages.1.content"),
    *wrong("messages", [{**USER, "content": 1}], param="messages.0.content"),
    *wrong("messages", [{**USER, "content": ["x"]}], param="messages.0.content.0"),
    *wrong("messages", [{**USER, "content": [{"type": "text"}]}], param="messages.0.content.0.text"),
    *wrong("messages", [{**USER, "images": ["x"]}], [{"role": "user", "contents": "x"}], param="messages.0"),
    *wrong("messages", [{"role": "tool", "content": "x"}], param="messages.0.tool_call_id"),
    *wrong("messages", [{"role": "assistant", "tool_calls": [{}]}], param="messages.0.tool_calls.0.id"),
    *wrong("messages", [{"role": "assistant"}]),  # neither content nor a call
    *wrong("max_completion_tokens", 5, param="max_tokens"),  # both names
    *wrong("logprobs", 1, "yes"),
    *wrong("top_logprobs", 5, -1, 21, 1.5),  # the first without logprobs
    *wrong("response_format", "json"),
    *wrong("response_format", {}, {"type": "yaml"}, param="response_format.type"),
    *wrong("response_format", {"type": "json_schema"}, param="response_format.json_schema"),
    *wrong(
        "response_format",
        *(shape(schema) for schema in (1, {"type": "person"}, {"$ref": "https://example.org/schema"})),
        *(shape(schema) for schema in ({"type": "integer", "minimum": 1e400}, {"const": "\ud800"})),
        param="response_format.json_schema.schema",
    ),
    *wrong("tools", {}, function(name="f") * 1025),
    *wrong("tools", ["f"], param="tools.0"),
    *wrong("tools", [{"type": "function"}], param="tools.0.function"),
    *wrong("tools", [{"type": "a search", "function": {"name": "f"}}], param="tools.0.type"),
    *wrong("tools", *(function(name=name) for name in ("", "a b", "a" * 129)), param="tools.0.function.name"),
    *wrong("tools", function(name="f", parameters=[]), param="tools.0.function.parameters"),
    *wrong("tool_choice", 1, "any", "required", function(name="f")[0]),
    *wrong("tool_choice", {"type": "function", "function": {}}, param="tool_choice.function.name"),
    *wrong("parallel_tool_calls", 1),
    *wrong("chat_template_kwargs", 1, {"messages": []}, {"tools": []}, {"add_generation_prompt": False}),
    *wrong("chat_template_kwargs", {"continue_final_message": True}),
    *wrong("continue_final_message", 1),
    *wrong("continue_final_message", True, param="messages"),  # the user's
    *wrong("add_generation_prompt", 1, False),
    *wrong("modalities", "text"),
    *wrong("modalities", ["audio"], param="modalities.0"),
    *(case for name in ("functions", "audio", "reasoning_effort") for case in wrong(name, 1)),
]

COMPLETION_ONLY = [
    *wrong("prompt", None, 1, {}, "", [], ["x"] * 65, [[1]] * 65),
    *wrong("prompt", ["a", [1]], [[1], "a"], param="prompt.0"),  # of which it is not clear what was meant
    *wrong("prompt", [[1], []], param="prompt.1"),
    *wrong("prompt", [1.5], [""], [2**31], [-1], [True], [[]], param="prompt.0"),
    *wrong("prompt", [4096], [[4096]]),
    *wrong("logprobs", True, -1, 21, 1.5),
    *wrong("best_of", 0, 2, "1"),
    *wrong("echo", "yes", 0),
    *(case for name in ("suffix", "messages", "n_predict") for case in wrong(name, 1)),
]


def check(server: Server, kind: str, name: str, value: Any, param: str) -> None:
    path, good = PATHS[kind]
    answered = server.metric("h2o_predicted_tokens_total")
    error = error_of(server.post(path, good | {name: value}), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert error["code"] in ("invalid_value", "missing_parameter", "unknown_parameter")
    assert param in error["message"] or param.removeprefix("prefill.") in error["message"]
    assert server.metric("h2o_predicted_tokens_total") == answered


@pytest.mark.parametrize(("name", "value", "param"), CHAT_ONLY)
def test_wrong_value_of_a_chat(server: Server, name: str, value: Any, param: str) -> None:
    check(server, "chat", name, value, param)


@pytest.mark.parametrize(("name", "value", "param"), [*BOTH, *COMPLETION_ONLY])
def test_wrong_value_of_a_completion(server: Server, name: str, value: Any, param: str) -> None:
    check(server, "completion", name, value, param)


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("name", ["wat", "max_token", "Temperature", "", "é😀", "a.b", "x" * 5000])
def test_an_unknown_parameter_is_named(server: Server, kind: str, name: str) -> None:
    path, good = PATHS[kind]
    error = error_of(server.post(path, good | {name: 1}), 400)
    assert error["code"] == "unknown_parameter"
    assert error["param"] == (name or None) or name.startswith(error["param"])
    assert len(error["message"]) < 1500


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("chat", "max_token", "did you mean max_tokens?"),
        ("completion", "Temperature", "did you mean temperature?"),
        ("completion", "wat", "leave it out"),
        ("chat", "reasoning", "leave it out"),
        ("chat", "prompt", "leave it out"),
    ],
)
def test_a_misspelt_parameter_gets_a_hint(server: Server, kind: str, name: str, hint: str) -> None:
    path, good = PATHS[kind]
    assert error_of(server.post(path, good | {name: 1}), 400)["message"].endswith(hint)


@pytest.mark.parametrize("kind", PATHS)
def test_null_is_the_default(server: Server, kind: str) -> None:
    """Clients write null where they mean nothing."""
    path, good = PATHS[kind]
    names = {name for name, *_ in (case.values for case in [*BOTH, *(CHAT_ONLY if kind == "chat" else [])])}
    nulls = dict.fromkeys(names - {"messages", "functions", "audio", "reasoning_effort"})
    answer = server.post(path, nulls | good)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("chat", {"temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0}),
        ("chat", {"temperature": 100, "top_p": 1, "top_k": 2**31 - 1, "min_p": 1}),
        ("chat", {"temperature": 1e-300, "seed": 0}),
        ("chat", {"n": 1.0, "max_tokens": 2.0, "seed": 3.0, "temperature": 0}),
        ("chat", {"seed": 10**400}),
        ("chat", {"repetition_penalty": 100, "repeat_last_n": -1, "presence_penalty": -100}),
        ("chat", {"repetition_penalty": 0.01, "repeat_last_n": 2**31 - 1, "frequency_penalty": 100}),
        ("chat", {"stop": ["x" * 1000] * 16}),
        ("chat", {"stop": ["\x00", "\n", "é"], "seed": -1}),
        ("chat", {"logit_bias": {str(token): 1e6 for token in range(4096)}}),
        ("chat", {"logit_bias": {"0": -1e6, "0001": 3}}),
        ("chat", {"logprobs": True, "top_logprobs": 20}),
        ("chat", {"tools": [], "tool_choice": "auto", "logprobs": False}),
        ("chat", {"modalities": ["text"], "store": True, "service_tier": "auto", "user": "é"}),
        ("chat", {"metadata": {"a": [1, {"b": None}]}, "cache_prompt": True, "model": ""}),
        ("chat", {"id_slot": 0, "top_k": -1, **ROUTER_KEYS}),
        ("completion", {"id_slot": -1, **ROUTER_KEYS}),
        ("chat", {"chat_template_kwargs": dict.fromkeys(["self", "template", "", "a b", "é", "*"], 1)}),
        ("chat", {"messages": [{"role": "user", "content": []}]}),
        ("chat", {"messages": [{"role": role, "content": None} for role in ("system", "user", "assistant")]}),
        ("chat", {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": []}, USER]}),
        ("chat", {"tools": function(name="a" * 128), "tool_choice": "none"}),
        ("chat", {"messages": [{"role": "system", "content": "s"}]}),
        ("chat", {"messages": [{"role": "assistant", "content": "I"}]}),
        ("completion", {"prompt": [0]}),
        ("completion", {"prompt": [[4095, 2, 3]]}),
        ("completion", {"prompt": ["\x00\x1b[31m<|eot_id|>"]}),
        ("completion", {"logprobs": 20, "echo": False, "best_of": 1, "n": 1, "prefill": {}}),
        ("completion", {"prefill": "h2o score=window heavy=100"}),
        ("completion", {"prefill": {"chunk_size": 2, "local": 1, "heavy": 0, "dense_tail": 0}}),
    ],
)
def test_the_ends_of_a_range_are_in_it(server: Server, kind: str, values: dict[str, Any]) -> None:
    path, good = PATHS[kind]
    answer = server.post(path, good | values)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_no_tokens(server: Server, kind: str, stream: bool) -> None:
    path, good = PATHS[kind]
    answer = server.post(path, good | {"max_tokens": 0, "stream": stream})
    assert answer.status_code == 200
    if not stream:
        assert answer.json()["usage"]["completion_tokens"] == 0
        assert answer.json()["choices"][0]["finish_reason"] == "length"


def test_tokenize_and_detokenize(server: Server) -> None:
    text = "naïve 東京 😀\n\x00"
    ids = server.post("/tokenize", {"content": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json() == {"content": text}
    pieces = server.post("/tokenize", {"content": "one two", "with_pieces": True}).json()["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "one two"
    pieces = server.post("/tokenize", {"content": text, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    assert any(isinstance(piece["piece"], list) for piece in pieces)  # bytes of parts of characters
    assert "\ufffd" not in str(pieces)
    raw = [p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces]
    assert b"".join(raw) == text.encode()
    special = server.post("/tokenize", {"content": "<|eot_id|>\ufffd", "with_pieces": True}).json()["tokens"]
    assert special[0] == {"id": 4, "piece": "<|eot_id|>"}
    assert server.post("/tokenize", {"content": ""}).json() == {"tokens": []}
    assert server.post("/detokenize", {"tokens": []}).json() == {"content": ""}
    assert server.post("/tokenize", {"content": "<|eot_id|>"}).json()["tokens"] == [4]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 1}, "content"),
        ("/tokenize", {"content": None}, "content"),
        ("/tokenize", {"content": "x", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "x", "what": 1}, "what"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens.0"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [1, 2**31]}, "tokens.1"),
        ("/detokenize", {"tokens": [1.5]}, "tokens.0"),
        ("/detokenize", {"tokens": [1, 4096]}, "tokens"),  # one more than the vocabulary has
    ],
)
def test_wrong_values_of_tokenize_and_detokenize(server: Server, path: str, body: Any, param: str) -> None:
    assert error_of(server.post(path, body), 400)["param"] == param
