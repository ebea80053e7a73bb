"""What clients write in other ways than we do, and what is refused by name rather than answered wrongly."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Serve, with_template
from tests.server.running import Server, error_of, events, request

from h2o_runtime.errors import ConfigError
from h2o_server.answers.followed_schema import followed
from h2o_server.answers.grammar import GrammarCompiler

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
USER = {"role": "user", "content": "Hello."}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 4},
    MESSAGES: {"messages": [USER], "max_tokens": 4},
    RESPONSES: {"input": [USER], "max_output_tokens": 4},
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tool(name: str = "f", parameters: Any = None, path: str = CHAT) -> dict[str, Any]:
    parameters = SCHEMA if parameters is None else parameters
    if path == MESSAGES:
        return {"name": name, "input_schema": parameters}
    function = {"name": name, "parameters": parameters}
    return {"type": "function", "function": function} if path == CHAT else {"type": "function", **function}


@pytest.mark.parametrize("path", ASKED)
def test_the_tools_of_many_servers_are_taken(server: Server, path: str) -> None:
    tools = [tool(f"t{number}", path=path) for number in range(200)]
    done = server.post(path, ASKED[path] | {"tools": tools})
    assert done.json()["error"]["code"] == "context_length_exceeded"  # they are read: the model is too small


def refused(server: Server, path: str, **more: Any) -> dict[str, Any]:
    """The error, which has status 400."""
    answer = server.post(path, ASKED[path] | more)
    if path != MESSAGES:
        return error_of(answer, 400)
    assert answer.status_code == 400
    error: dict[str, Any] = answer.json()["error"]
    return error


# Paths and bytes


def status(server: Server, method: str, path: str, body: bytes = b"") -> int:
    """Of an answer on a connection of its own: the client's library would read // as a host's name."""
    with server.connection(20) as connected:
        connected.sendall(request(method, path, body))
        return int(connected.recv(100).split()[1])


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions//"]
)
def test_a_slash_too_many_is_none(server: Server, path: str) -> None:
    before = server.metric("h2o_requests_total", outcome="length")
    body = json.dumps(ASKED[CHAT] | {"seed": 1, "ignore_eos": True}).encode()
    assert status(server, "POST", path, body) == 200
    server.wait_until_idle()
    assert server.metric("h2o_requests_total", outcome="length") == before + 1
    assert status(server, "GET", "//health/") == 200
    assert server.get("/v1/models/").json() == server.get("/v1/models").json()


def test_a_slash_too_many_opens_nothing(serve: Serve) -> None:
    server = serve(key="secret")
    for path in ("//v1/models", "//props/", "/health//../props"):
        assert status(server, "GET", path) == 401
    for path in ("/static/..//v1/models", "//static//..//../app.py"):
        assert status(server, "GET", path) == 404


def test_a_byte_order_mark_begins_a_body_and_is_no_part_of_it(server: Server) -> None:
    body = json.dumps({"content": "x"}).encode()
    plain = server.post("/tokenize", body)
    assert plain.json()["tokens"]
    assert server.post("/tokenize", b"\xef\xbb\xbf" + body).json() == plain.json()
    assert server.post("/tokenize", b"\xef\xbb\xbf" * 2 + body).status_code == 400


# Reasoning of earlier answers

THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}{{ m.thinking or '' }}{{ m.content }}"
    "{% endfor %}"
)


def test_reasoning_is_read_under_every_name(serve: Serve, tiny_bundle: Path, tmp_path: Path) -> None:
    template = tmp_path / "thinking.jinja"
    template.write_text(THINKING)
    server = serve("--ctx-size", 512, bundle=with_template(tiny_bundle, tmp_path / "bundle", template))

    def tokens(**more: Any) -> int:
        told = {"role": "assistant", "content": "Hello.", **more}
        answer = server.chat(messages=[USER, told, USER], max_tokens=1)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["prompt_tokens"])

    text = "The user greets me, and so do I."
    shown = tokens(reasoning_content=text)
    assert shown > tokens()
    details = [
        {"type": "reasoning.text", "text": text[:10], "signature": "x"},
        {"type": "reasoning.encrypted", "data": "x"},
        {"type": "reasoning.summary", "summary": text[10:]},
    ]
    assert tokens(reasoning=text) == tokens(reasoning=text, reasoning_details=details) == shown
    assert tokens(reasoning_details=details) == shown
    assert tokens(reasoning_content=text, reasoning="other") == shown


# What no model here reads


@pytest.mark.parametrize(
    ("path", "content", "word"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:,"}}, "images"),
        (CHAT, {"type": "input_audio", "input_audio": {}}, "sounds"),
        (CHAT, {"type": "file", "file": {}}, "files"),
        (MESSAGES, {"type": "image", "source": {}}, "images"),
        (MESSAGES, {"type": "document", "source": {}}, "documents"),
        (RESPONSES, {"type": "input_image", "image_url": "data:,"}, "images"),
        (RESPONSES, {"type": "input_file", "file_id": "x"}, "files"),
    ],
)
def test_images_and_documents_are_not_supported(
    server: Server, path: str, content: dict[str, Any], word: str
) -> None:
    field = "input" if path == RESPONSES else "messages"
    error = refused(server, path, **{field: [{"role": "user", "content": [content]}]})
    assert error["message"].endswith(f"{word} are not supported: this server reads text alone")
    assert error["param"].startswith(f"{field}.0.content.0")


@pytest.mark.parametrize(
    ("path", "name", "hint"),
    [
        (RESPONSES, "stop", "leave it out"),
        (RESPONSES, "max_tokens", "did you mean max_output_tokens?"),
        (MESSAGES, "stop", "leave it out"),
        (MESSAGES, "stop_sequence", "did you mean stop_sequences?"),
    ],
)
def test_a_hint_names_only_what_is_meant(server: Server, path: str, name: str, hint: str) -> None:
    assert refused(server, path, **{name: ["x"]})["message"].endswith(hint)


# Tools


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(
    "schema", [{"type": "array", "items": {}}, {"type": ["string", "null"]}, {"type": 5}]
)
def test_parameters_are_of_an_object(server: Server, path: str, schema: dict[str, Any]) -> None:
    error = refused(server, path, tools=[tool(parameters=schema, path=path)])
    field = {CHAT: "function.parameters", MESSAGES: "input_schema", RESPONSES: "parameters"}[path]
    assert error["param"] == f"tools.0.{field}"


@pytest.mark.parametrize(
    "schema", [{}, {"properties": {"a": {"type": "integer", "maximum": 9}}}, {"type": ["object", "null"]}]
)
def test_arguments_are_an_object_whatever_else_the_schema_allows(server: Server, schema: Any) -> None:
    for seed in range(3):
        answer = server.chat(
            tools=[tool(parameters=schema)], tool_choice="required", seed=seed, max_tokens=60
        ).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"].startswith("{")


@pytest.mark.parametrize("path", ASKED)
def test_functions_have_names_of_their_own(server: Server, path: str) -> None:
    error = refused(server, path, tools=[tool(path=path), tool("g", path=path), tool(path=path)])
    assert error["param"] == "tools"
    assert "'f'" in error["message"]


@pytest.mark.parametrize(
    ("path", "talk"),
    [
        (CHAT, [{"role": "tool", "tool_call_id": "c2", "content": "1"}]),
        (
            CHAT,
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c2", "content": "1"},
            ],
        ),
        (MESSAGES, [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c2"}]}]),
        (RESPONSES, [{"type": "function_call_output", "call_id": "c2", "output": "1"}]),
    ],
)
def test_a_result_belongs_to_a_call(server: Server, path: str, talk: list[Any]) -> None:
    field = "input" if path == RESPONSES else "messages"
    error = refused(server, path, **{field: [USER, *talk]})
    assert error["param"] == field
    assert "'c2'" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_does_not_cut_a_required_call(server: Server, stream: bool) -> None:
    asked = {"tools": [tool()], "tool_choice": "required", "max_tokens": 60, "stop": ["a", ":"]}
    answer = server.chat(stream=stream, **asked)
    if stream:
        told = [one for one in events(iter(answer.text.splitlines())) if one != "[DONE]"]
        deltas = [call for one in told for call in one["choices"][0]["delta"].get("tool_calls", ())]
        arguments = "".join(call["function"]["arguments"] for call in deltas)
        reason = told[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = answer.json()["choices"]
        arguments, reason = (
            choice["message"]["tool_calls"][0]["function"]["arguments"],
            choice["finish_reason"],
        )
    assert set(json.loads(arguments)) == {"a"}
    assert reason == "tool_calls"


# Schemas


@pytest.mark.parametrize("pattern", [r"^[a-z]+$", r"\\bar", r"\(?=", r"(?:a|b)+", r"\d{3}"])
def test_a_pattern_that_a_grammar_can_follow_stays(tool_bundle: Path, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert followed(schema) == (schema, frozenset())
    compiler = GrammarCompiler(tool_bundle / "tokenizer.json", 4096, [1])
    compiler.json_schema(schema, field="x").close()
    compiler.close()


UNKNOWN = (
    "idn-email",
    "idn-hostname",
    "uri-reference",
    "iri",
    "uri-template",
    "json-pointer",
    "regex",
    "path",
)
KNOWN = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")


def test_the_formats_that_stay_are_those_that_the_library_enforces(tool_bundle: Path) -> None:
    compiler = GrammarCompiler(tool_bundle / "tokenizer.json", 4096, [1])
    for form in KNOWN:
        schema = {"type": "string", "format": form}
        assert followed(schema) == (schema, frozenset())
        compiler.json_schema(schema, field="x").close()
    for form in UNKNOWN:
        schema = {"type": "string", "format": form}
        assert followed(schema) == ({"type": "string"}, {"format"})
        with pytest.raises(ConfigError, match="Unknown format"):
            compiler.json_schema(schema, field="x")
    compiler.close()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"json_schema": SCHEMA}),
        (CHAT, {"tools": [tool()], "tool_choice": "required"}),
        (MESSAGES, {"tools": [tool(path=MESSAGES)], "tool_choice": {"type": "any"}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ],
)
def test_a_schema_does_not_continue_a_message(server: Server, path: str, more: dict[str, Any]) -> None:
    talk = [USER, {"role": "assistant", "content": '{"a": '}]
    go_on = {"continue_final_message": True} if path == CHAT else {}
    error = refused(server, path, messages=talk, **go_on, **more)
    assert error["param"] == ("continue_final_message" if path == CHAT else "messages")
    assert "cannot continue a message" in error["message"]


def test_a_grammar_may_continue_a_message(server: Server) -> None:
    talk = [USER, {"role": "assistant", "content": "It is "}]
    answer = server.chat(messages=talk, continue_final_message=True, grammar='root ::= "one" | "two"')
    assert answer.json()["choices"][0]["message"]["content"] in ("one", "two")


# The list of models


def test_anthropics_client_lists_the_model(anthropic: Any) -> None:
    (model,) = anthropic.models.list()
    assert model.type == "model"
    assert model.display_name == model.id
    assert abs((datetime.now(timezone.utc) - model.created_at).total_seconds()) < 3600
    assert anthropic.models.retrieve(model.id) == model
