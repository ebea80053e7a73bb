"""What steers somebody else's service: taken, left alone and named, field by field as docs/serving.md says."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from tests.server.conftest import Serve, with_template
from tests.server.running import Server, error_of, wait_for

from h2o_server.apis.chat.billing_line import BILLING_LINE
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.messages.schema import MessageRequest
from h2o_server.apis.responses.schema import ResponseRequest
from h2o_server.apis.shared.history import HistoryPart
from h2o_server.apis.shared.left_alone import Foreign, is_left_alone

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
APIS: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "chat completions": (ChatRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "responses": (ResponseRequest, {"input": "x"}),
    "messages": (MessageRequest, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
}
ONE_VALUE = {"background": True, "truncation": "auto"}  # accepted with another value
FOREIGN = {
    "tools": "ForeignTool",
    "messages.content": "RedactedThinking",
}  # in the page with an example of a type
HEADER = "X-Left-Alone"


def rows() -> dict[str, dict[str, str]]:
    """The page's decisions, by field and API."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Fields of other services")
    head, _, *lines = itertools.takewhile(
        lambda line: line.startswith("|"),
        itertools.dropwhile(lambda line: line[:1] != "|", section.splitlines()),
    )
    apis = [cell.strip() for cell in head.split("|")[2:-1]]
    assert apis == list(APIS)
    decisions = {}
    for line in lines:
        fields, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        for field in re.findall(r"`([^`]+)`", fields):
            decisions[field] = dict(zip(apis, cells, strict=True))
    return decisions


def fields_of(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, bool]]:
    """All fields of a request, and whether each is left alone; `*` stands for unknown ones."""
    if issubclass(model, HistoryPart):
        yield f"{before}*", True
    for name, field in model.model_fields.items():
        path = before + (field.alias or name)
        yield path, is_left_alone(field)
        if not is_left_alone(field):
            for part in models(field.annotation):
                if issubclass(part, Foreign):
                    yield f"{path}[{part.__name__}]", True
                else:
                    yield from fields_of(part, f"{path}.")


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models(argument)


def in_the_pages_words(path: str) -> str:
    if path.endswith(".*"):
        return f"{path.partition('.')[0]}.*"
    return "…cache_control" if path.endswith("cache_control") else path


def in_our_words(field: str) -> str:
    path, bracket, _ = field.partition("[")
    return f"{path}[{FOREIGN[path]}]" if bracket else path


@pytest.mark.parametrize("api", APIS)
def test_the_pages_table_is_what_the_code_does(api: str) -> None:
    model, body = APIS[api]
    known = {in_the_pages_words(path): alone for path, alone in fields_of(model)} | {BILLING_LINE: True}
    told = {in_our_words(field): cells[api] for field, cells in rows().items()}
    assert {path for path, alone in known.items() if alone} == {
        path for path, decision in told.items() if decision == "left alone"
    }
    for path, decision in told.items():
        if decision == "read":
            assert known[path] is False, path
        elif decision != "left alone":
            assert decision in ("", "refused"), decision
            if path in known:
                assert decision == "refused", path
                with pytest.raises(ValidationError):
                    model.model_validate(body | {path: ONE_VALUE[path]})


# What clients send first. Texts are ours.

FUNCTION = {"type": "object", "properties": {"path": {"type": "string"}}}
RESPONSES_TOOL = {"type": "function", "name": "exec_command", "strict": False, "parameters": FUNCTION}
SPAWN = RESPONSES_TOOL | {"name": "spawn"}
CODEX = {
    "model": "local",
    "input": [
        {"type": "message", "role": role, "content": [{"type": "input_text", "text": f"Text {index}."}]}
        for index, role in enumerate(("developer", "developer", "user", "user"))
    ],
    "tools": [
        RESPONSES_TOOL,
        {"type": "namespace", "name": "multi_agent_v1", "description": "A tool.", "tools": [SPAWN]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"note": "x"},
    "max_output_tokens": 8,
}
CODEX_ALONE = {
    *("client_metadata", "include", "prompt_cache_key", "reasoning.summary", "store"),
    *("tools[namespace]", "tools[web_search]"),
}


def test_the_first_request_of_codex(server: Server) -> None:
    response = server.post("/v1/responses", CODEX)
    assert response.status_code == 200, response.text
    assert set(response.headers[HEADER].split(", ")) == CODEX_ALONE
    assert [tool["name"] for tool in response.json()["tools"]] == ["exec_command"]


def test_later_turns_of_codex(server: Server) -> None:
    talk = [
        *CODEX["input"],  # type: ignore[misc]
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "name": "exec_command", "arguments": '{"path": "a"}', "call_id": "call_1"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [
                {"type": "input_text", "text": "A picture:"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            ],
        },
    ]
    response = server.post(
        "/v1/responses", CODEX | {"input": talk, "text": {"verbosity": "low"}, "stream": True}
    )
    assert response.status_code == 200, response.text
    more = {"input.encrypted_content", "input.phase", "text.verbosity"}
    assert set(response.headers[HEADER].split(", ")) == CODEX_ALONE | more


CLAUDE = {
    "model": "m",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "You help with code."}],
    "messages": [{"role": "user", "content": "List the files."}],
    "tools": [{"name": "Read", "description": "Reads.", "input_schema": FUNCTION}],
    "stop_sequences": ["."],
}
READ = CLAUDE["tools"][0]  # type: ignore[index]
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
FOUND = {"type": "tool_reference", "tool_name": "Write"}  # by its own search among tools
EDITS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


@pytest.mark.parametrize(
    ("more", "alone"),
    [
        ({"context_management": EDITS}, "context_management"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled"}}, None),
        ({"output_config": {"effort": "high"}}, "output_config.effort"),
        ({"tools": [READ | {"eager_input_streaming": True}]}, "tools.eager_input_streaming"),
        (
            {"tools": [READ | {"defer_loading": True}, SEARCH]},
            "tools.defer_loading, tools[web_search_20250305]",
        ),
        ({"metadata": {"user_id": "x"}, "service_tier": "priority"}, "metadata, service_tier"),
    ],
)
def test_the_first_request_of_claude_code(server: Server, more: dict[str, Any], alone: str | None) -> None:
    response = server.post("/v1/messages?beta=true", CLAUDE | more)
    assert response.status_code == 200, response.text
    assert response.headers.get(HEADER) == alone
    counted = {name: value for name, value in (CLAUDE | more).items() if name in CLAUDE_PROMPT}
    assert server.post("/v1/messages/count_tokens?beta=true", counted).status_code == 200


CLAUDE_PROMPT = ("model", "messages", "system", "tools", "thinking", "output_config", "context_management")


def test_later_turns_of_claude_code(server: Server) -> None:
    """A system turn after the user's, another service's thoughts, and a tool that gives a picture."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    turns = [
        {"role": "user", "content": "Look."},
        {
            "role": "system",
            "content": [{"type": "text", "text": "It is Monday."}],
            "output_config": {"effort": "low"},
        },
        {
            "role": "assistant",
            "content": [
                {"type": "redacted_thinking", "data": "AAAA"},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": "a.png"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [image, FOUND]}],
        },
    ]

    def tokens(turns: list[Any]) -> int:
        response = server.post("/v1/messages", CLAUDE | {"messages": turns})
        assert response.status_code == 200, response.text
        assert response.headers[HEADER] == "messages.content[redacted_thinking], messages.output_config"
        usage = response.json()["usage"]
        return int(usage["input_tokens"] + usage["cache_read_input_tokens"])

    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": ""}
    empty = [*turns[:3], {"role": "user", "content": [result]}]
    assert tokens(turns) > tokens(empty) + 20  # sentences in the places of the picture and the reference


BILLED = "x-anthropic-billing-header: cc_version=2.1.300.{0}; cc_entrypoint=cli; cch={0};"
RULES = "You help with code."
USER = [{"role": "user", "content": "List the files."}]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def talk(content: Any, role: str = "system") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}, *USER]}


@pytest.mark.parametrize(
    ("path", "billed", "plain"),
    [
        (
            MESSAGES,
            {"system": blocks(BILLED, f"\n{RULES}"), "messages": USER},
            {"system": f"\n{RULES}", "messages": USER},
        ),
        (MESSAGES, {"system": f"{BILLED}\n{RULES}", "messages": USER}, {"system": RULES, "messages": USER}),
        (MESSAGES, {"system": blocks(BILLED), "messages": USER}, {"messages": USER}),
        (CHAT, talk(blocks(BILLED, RULES)), talk(RULES)),
        (CHAT, talk(f"{BILLED}\n\n{RULES}", "developer"), talk(RULES)),
        (CHAT, talk(f"{BILLED}{RULES}"), talk(RULES)),
        (CHAT, talk(f"x-anthropic-billing-header: of another form {{0}}\n{RULES}"), talk(RULES)),
        (CHAT, talk(BILLED), {"messages": USER}),
        (
            RESPONSES,
            {"instructions": f"{BILLED}\n{RULES}", "input": USER},
            {"instructions": RULES, "input": USER},
        ),
    ],
)
def test_a_billing_line_is_not_shown(
    server: Server, path: str, billed: dict[str, Any], plain: dict[str, Any]
) -> None:
    """Its number is another one in every request: the model would read all after it again."""
    name = "max_output_tokens" if path == RESPONSES else "max_tokens"

    def tokens(body: dict[str, Any], alone: str | None, mark: str = "") -> tuple[int, int]:
        """Of the prompt, and those among them that the cache held."""
        body = json.loads(json.dumps(body).replace("{0}", mark))
        response = server.post(path, body | {name: 1})
        assert response.status_code == 200, response.text
        assert response.headers.get(HEADER) == alone
        if path == MESSAGES:
            assert server.post(f"{path}/count_tokens", body).json()["input_tokens"] == sum(
                response.json()["timings"][part] for part in ("prompt_n", "cache_n")
            )
        timings = response.json()["timings"]
        return timings["prompt_n"] + timings["cache_n"], timings["cache_n"]

    whole, _ = tokens(plain, None)
    for mark in ("36ee5", "0aaa9"):
        assert tokens(billed, BILLING_LINE, mark) == (whole, whole)


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_billing_line_of_others_is_text(server: Server, role: str) -> None:
    line = {"role": role, "content": BILLED}
    response = server.chat(messages=[{"role": "user", "content": "What is this?"}, line, *USER])
    assert HEADER not in response.headers
    assert response.json()["usage"]["prompt_tokens"] > 60


def test_a_chat_with_foreign_tools_and_a_tools_picture(server: Server) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    look = {"type": "function", "function": {"name": "look", "parameters": FUNCTION}}
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    talk = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": picture},
        {"role": "developer", "content": "It is Monday."},
    ]
    more = {"tools": [look, {"type": "custom", "custom": {"name": "patch"}}], "verbosity": "low", "user": "u"}
    response = server.chat(messages=talk, **more)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "tools[custom], user, verbosity"
    error = error_of(server.chat(tools=[{"type": "a b"}]), 400)
    assert error["param"] == "tools.0.type"
    error = error_of(server.chat(tools=[{"type": "web_search"}], tool_choice="required"), 400)
    assert error["param"] == "tool_choice"


def test_the_log_tells_it_once_at_its_most_detailed(serve: Serve) -> None:
    server = serve("--ctx-size", 256, "-v")
    assert server.chat(user="u", metadata={}).status_code == 200
    wait_for(lambda: "POST /v1/chat/completions 200" in server.log)
    assert server.log.count("left alone: metadata, user") == 1


SWITCH = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %} one two three{% endif %}"
    "{% if reasoning_effort %} {{ reasoning_effort }}{% endif %}"
)


def test_thinking_and_effort_are_the_templates(serve: Serve, tiny_bundle: Path, tmp_path: Path) -> None:
    template = tmp_path / "switch.jinja"
    template.write_text(SWITCH)
    server = serve("--ctx-size", 256, bundle=with_template(tiny_bundle, tmp_path / "bundle", template))

    def tokens(**more: Any) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **more}
        return int(server.post("/v1/messages/count_tokens", body).json()["input_tokens"])

    off = tokens(thinking={"type": "disabled"})
    assert off == tokens()
    assert (
        tokens(thinking={"type": "adaptive"})
        == tokens(thinking={"type": "enabled", "budget_tokens": 9})
        > off
    )
    assert tokens(output_config={"effort": "max"}) > off
    answer = server.post(
        "/v1/responses", {"input": "x", "reasoning": {"effort": "high"}, "max_output_tokens": 1}
    )
    assert HEADER not in answer.headers
    assert answer.json()["reasoning"]["effort"] == "high"
