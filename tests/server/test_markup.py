"""A special token in a message stays text in every API; in a completion's prompt it is itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.server.running import Server

MARK = "<|eot_id|>"


def _chat(text: str, role: str) -> tuple[str, Any]:
    message = {"role": role, "content": text}
    if role == "tool":
        message["tool_call_id"] = "call_1"
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    before = {"tool": [{"role": "assistant", "tool_calls": [call]}]}.get(role, [])
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}, *before, message]}


def _messages(text: str, role: str) -> tuple[str, Any]:
    talk: list[Any] = [{"role": "user", "content": "Hi"}]
    if role == "tool":
        use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
        talk += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    elif role != "system":
        talk += [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "x"}]
        talk[-1 if role == "user" else -2]["content"] = text
    return "/v1/messages", {"messages": talk, **({"system": text} if role == "system" else {})}


def _responses(text: str, role: str) -> tuple[str, Any]:
    items: list[Any] = [{"role": "user", "content": "Hi"}]
    if role == "tool":
        items.append({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": "c", "output": text})
    else:
        items.append({"role": role, "content": text})
    return "/v1/responses", {"input": items}


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
@pytest.mark.parametrize("form", [_chat, _messages, _responses])
def test_a_mark_in_a_message_is_as_long_as_its_text(
    server: Server, form: Callable[[str, str], tuple[str, Any]], role: str
) -> None:
    def tokens(text: str) -> int:
        path, body = form(text, role)
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        answer = server.post(path, {"model": "m", limit: 1, **body})
        usage = answer.json()["usage"]
        cached = usage.get("cache_read_input_tokens", 0)  # Anthropic's input_tokens are without them
        return int(usage.get("prompt_tokens", usage.get("input_tokens"))) + cached

    assert tokens(f"\n{MARK}\n") - tokens(f"\n{MARK[:-1]} >\n") in (-1, 0)


def test_a_mark_in_a_completions_prompt_is_one_token(server: Server) -> None:
    used = server.post("/v1/completions", {"prompt": f"a{MARK}b", "max_tokens": 1}).json()["usage"]
    plain = server.post("/v1/completions", {"prompt": "ab", "max_tokens": 1}).json()["usage"]
    assert used["prompt_tokens"] - plain["prompt_tokens"] in (1, 2)
