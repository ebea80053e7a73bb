"""Several answers to one request, prompts that are echoed, and answers that are begun or bound by the client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.running import Server, error_of

ASK = [{"role": "user", "content": "Name a colour."}]


def streamed(server: Server, path: str, **body: Any) -> list[Any]:
    return list(server.streamed(path, body))


def test_n_choices_of_a_chat(openai: Any) -> None:
    asked = {"model": "m", "messages": ASK, "max_tokens": 6, "seed": 3}
    answer = openai.chat.completions.create(**asked, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    alone = [openai.chat.completions.create(**asked | {"seed": 3 + i}) for i in range(3)]
    assert texts == [one.choices[0].message.content for one in alone]
    assert answer.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert answer.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    gathered = ["", "", ""]
    for chunk in openai.chat.completions.create(**asked, n=3, stream=True):
        (choice,) = chunk.choices
        gathered[choice.index] += choice.delta.content or ""
    assert gathered == texts


def test_several_prompts(openai: Any, server: Server) -> None:
    prompts = ["import os\n", "Once upon a time", "import os\n"]
    asked = {"model": "m", "max_tokens": 5, "temperature": 0}
    alone = [openai.completions.create(**asked, prompt=prompt) for prompt in prompts]
    answer = openai.completions.create(**asked, prompt=prompts)
    assert [choice.text for choice in answer.choices] == [one.choices[0].text for one in alone]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    ids = [
        server.post("/tokenize", {"content": text, "add_special": True}).json()["tokens"] for text in prompts
    ]
    twice = openai.completions.create(**asked, prompt=ids, n=2)
    assert [choice.text for choice in twice.choices] == [c.text for c in answer.choices for _ in range(2)]
    assert twice.usage.prompt_tokens == answer.usage.prompt_tokens
    gathered = [""] * 3
    told = streamed(
        server, "/v1/completions", prompt=prompts, stream_options={"include_usage": True}, **asked
    )
    for chunk in told[:-2]:
        gathered[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert gathered == [choice.text for choice in answer.choices]
    assert told[-2]["usage"]["prompt_tokens"] == answer.usage.prompt_tokens
    assert told[-1] == "[DONE]"


def test_one_prompt_of_several_that_does_not_fit(server: Server) -> None:
    error = error_of(server.complete(["x", "word " * 2000]), 400)
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "values", [{"n": 33, "prompt": ["a", "b"]}, {"n": 2, "best_of": 1}, {"echo": True, "logprobs": 1}]
)
def test_what_cannot_be_had_together(server: Server, values: dict[str, Any]) -> None:
    assert error_of(server.complete(**values), 400)["param"] in ("n", "best_of", "echo")


# Echo


def test_echo(openai: Any, server: Server) -> None:
    asked = {"model": "m", "max_tokens": 4, "temperature": 0}
    plain = openai.completions.create(**asked, prompt="naïve 東京").choices[0].text
    echoed = openai.completions.create(**asked, prompt="naïve 東京", echo=True).choices[0].text
    assert echoed == "naïve 東京" + plain
    ids = server.post("/tokenize", {"content": "naïve 東京"}).json()["tokens"]
    assert openai.completions.create(**asked, prompt=ids, echo=True).choices[0].text.startswith("naïve 東京")
    told = streamed(server, "/v1/completions", prompt="naïve 東京", echo=True, **asked)[:-1]
    assert told[0]["choices"][0]["text"] == "naïve 東京"
    assert "".join(chunk["choices"][0]["text"] for chunk in told) == echoed


# What llama.cpp's clients send


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_schema_and_a_grammar_on_top_level(server: Server, path: str) -> None:
    asked = {"messages": ASK} if "chat" in path else {"prompt": "x"}

    def text(**more: Any) -> str:
        (choice,) = server.post(path, {**asked, "max_tokens": 60, "temperature": 2, **more}).json()["choices"]
        assert choice["finish_reason"] == "stop"
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    assert json.loads(text(json_schema={"type": "integer", "minimum": 5, "maximum": 9})) in range(5, 10)
    assert text(grammar='root ::= colour " é"{2}\\ncolour ::= "red" | "green"'.replace("\\n", "\n")) in (
        "red é é",
        "green é é",
    )


@pytest.mark.parametrize(
    "values",
    [
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"json_schema": {}, "response_format": {"type": "json_object"}},
        {
            "grammar": 'root ::= "a"',
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
        },
    ],
)
def test_only_one_thing_decides_the_form(server: Server, values: dict[str, Any]) -> None:
    assert error_of(server.chat(**values), 400)["param"] in ("grammar", "response_format")


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_paths_without_a_version(server: Server, path: str) -> None:
    body = {"messages": ASK, "prompt": "x", "max_tokens": 3, "temperature": 0}
    del body["prompt" if "chat" in path else "messages"]
    assert server.post(path, body).json()["choices"] == server.post("/v1" + path, body).json()["choices"]
    assert path not in server.get("/openapi.json").json()["paths"]


# Messages that go on


def test_the_last_message_is_continued(server: Server, openai: Any) -> None:
    begun = [*ASK, {"role": "assistant", "content": "The colour is "}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    asked = {"max_tokens": 8, "temperature": 0}
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    text = f"<|begin_of_text|>{head.format('user')}Name a colour.<|eot_id|>{head.format('assistant')}The colour is "
    ids = server.post("/tokenize", {"content": text}).json()["tokens"]
    continued = server.chat(messages=begun, **more, **asked).json()
    assert continued["usage"]["prompt_tokens"] == len(ids)
    assert (
        continued["choices"][0]["message"]["content"]
        == server.complete(ids, **asked).json()["choices"][0]["text"]
    )
    told = streamed(server, "/v1/chat/completions", messages=begun, **more, **asked)
    gathered = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in told[:-1])
    assert gathered == continued["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "user", "content": "x"},
    ],
)
def test_what_cannot_be_continued(server: Server, last: Any) -> None:
    error = error_of(server.chat(messages=[*ASK, last], continue_final_message=True), 400)
    assert error["param"] == "messages"
    assert "continued" in error["message"]
