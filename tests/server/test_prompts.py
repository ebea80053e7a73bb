"""Long prompts: what does not fit, what sparse prefill did, what the cache held, and how far the work is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tests.server.conftest import Serve, with_template
from tests.server.running import Server, error_of, wait_for

from h2o_runtime.policies.prefill import PREFILL, Full, Query, Window

SPARSE: dict[str, Any] = {"chunk_size": 64, "local": 16, "heavy": 16, "dense_tail": 8, "batch_size": 64}
WORDS = "All work and no play makes Jack a dull boy. "


def tokens(server: Server, text: str) -> int:
    return len(server.post("/tokenize", {"content": text}).json()["tokens"])


# What does not fit


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context(server: Server, stream: bool) -> None:
    for response, prompt_tokens, param in (
        (server.complete(WORDS * 100, stream=stream), tokens(server, WORDS * 100), "prompt"),
        (server.complete([5] * 513, stream=stream), 513, "prompt"),
        (server.complete([5] * 8192, stream=stream), 8192, "prompt"),
        (server.chat(WORDS * 100, stream=stream), None, "messages"),
    ):
        error = error_of(response, 400)
        assert error["param"] == param
        assert error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 512
        assert error["n_prompt_tokens"] > 512
        assert prompt_tokens in (None, error["n_prompt_tokens"])
        assert str(error["n_prompt_tokens"]) in error["message"]
        larger = ", or start the server with a larger --ctx-size, of at most 8192"
        assert error["message"].endswith(f"shorten it{larger if error['n_prompt_tokens'] < 8192 else ''}")


# What the template refuses


def test_the_template_may_refuse(server: Server) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call, call]}]
    error = error_of(server.chat(messages=talk), 400)
    assert error["param"] == "messages"
    assert "one tool at a time" in error["message"]


def test_a_model_without_a_chat_template(serve: Serve, tiny_bundle: Path, tmp_path: Path) -> None:
    server = serve("--ctx-size", 64, bundle=with_template(tiny_bundle, tmp_path / "base", None))
    error = error_of(server.chat(), 400)
    assert error["param"] == "messages"
    assert "/v1/completions" in error["message"]
    assert str(tmp_path) not in error["message"]
    assert server.complete().status_code == 200


# What sparse prefill did


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_sparse_prompt_tells_of_its_chunks(server: Server, path: str) -> None:
    prompt = (
        {"prompt": WORDS * 30}
        if "chat" not in path
        else {"messages": [{"role": "user", "content": WORDS * 28}]}
    )
    body = {**prompt, "max_tokens": 2, "prefill": SPARSE | {"score": "window", "window": 8}}
    answer = server.post(path, body).json()
    told = answer["h2o"]
    new = answer["usage"]["prompt_tokens"] - answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert told["chunks"] == math.ceil(new / 64) > 1
    assert told["memory_size"] == 32
    assert told["prefill"] == PREFILL.settings_of(Window(**SPARSE, window=8))


def test_what_a_prompt_saw_is_told(server: Server) -> None:
    seen = server.complete(WORDS * 30, prefill=SPARSE).json()["h2o"]["seen"]
    assert 0.0 < seen["least_seen"] <= seen["seen"] <= 1.0
    assert seen["widened"] == 0.0
    wait_for(lambda: server.metric("h2o_prompt_attention_least_seen") == pytest.approx(seen["least_seen"]))
    guarded = SPARSE | {"missed": 0.0}
    assert server.complete(WORDS * 30, prefill=guarded).json()["h2o"]["seen"]["widened"] > 0.0
    assert server.complete(WORDS * 30, prefill={"policy": "full"}).json()["h2o"]["seen"] is None


def test_sparse_and_full_answers_are_the_runtimes(server: Server, tiny_bundle: Path) -> None:
    from h2o_runtime.answers.completion import Completion
    from h2o_runtime.answers.request import Request
    from h2o_runtime.text_model import TextModel

    with TextModel.load(tiny_bundle, context=512) as model:
        for config in (Full(), Query(**SPARSE)):
            *_, last = model.complete(Request(model.text_prompt(WORDS * 30), 8, config))
            assert isinstance(last, Completion)
            given = SPARSE if config.name == "h2o" else {"policy": "full"}
            answer = server.complete(WORDS * 30, max_tokens=8, temperature=0, prefill=given).json()
            assert answer["choices"][0]["text"] == last.text


# What the cache held


def test_the_next_turn_of_a_chat_runs_only_what_is_new(server: Server) -> None:
    talk: list[dict[str, str]] = [{"role": "user", "content": WORDS * 5}]
    first = server.chat(messages=talk, max_tokens=8, seed=1).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    talk += [
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "Go on."},
    ]
    second = server.chat(messages=talk, max_tokens=8, seed=1).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"] + 7
    assert second["timings"]["cache_n"] == cached
    assert second["timings"]["prompt_n"] == second["usage"]["prompt_tokens"] - cached < 20


def test_timings_are_llama_cpps(server: Server) -> None:
    answer = server.complete("Once upon a", max_tokens=6, ignore_eos=True).json()
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["usage"]["prompt_tokens"]
    assert timings["predicted_n"] == 6
    assert timings["predicted_ms"] > 0
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 6)
    assert timings["predicted_per_second"] == pytest.approx(6e3 / timings["predicted_ms"])
    assert timings["prompt_per_second"] == pytest.approx(1e3 * timings["prompt_n"] / timings["prompt_ms"])


# How far the work is


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("prefill", [SPARSE, {"policy": "full"}])
def test_progress_goes_up_to_the_whole_prompt(server: Server, path: str, prefill: dict[str, Any]) -> None:
    server.complete("something else", max_tokens=0)
    prompt = (
        {"prompt": WORDS * 28}
        if "chat" not in path
        else {"messages": [{"role": "user", "content": WORDS * 28}]}
    )
    body = {**prompt, "max_tokens": 3, "return_progress": True, "prefill": prefill}
    *told, _ = server.streamed(path, body)
    where = [index for index, chunk in enumerate(told) if "prompt_progress" in chunk]
    progress = [told[index]["prompt_progress"] for index in where]
    processed = [step["processed"] for step in progress]
    assert processed == sorted(processed)
    assert processed[-1] == progress[-1]["total"]
    assert len({(step["total"], step["cache"]) for step in progress}) == 1
    assert all(step["cache"] <= step["processed"] <= step["total"] for step in progress)
    assert [step["time_ms"] for step in progress] == sorted(step["time_ms"] for step in progress)
    timings = told[-1]["timings"]
    assert progress[-1]["total"] == timings["prompt_n"] + timings["cache_n"]
    # All of it before the first text; a client that looks at choices[0] finds one.
    texts = [
        index
        for index, chunk in enumerate(told)
        if chunk["choices"][0].get("text") or chunk["choices"][0].get("delta", {}).get("content")
    ]
    assert max(where) < min(texts)


def test_progress_only_when_it_is_asked_for(server: Server) -> None:
    for more in ({}, {"return_progress": False}):
        told = server.streamed("/v1/completions", {"prompt": WORDS * 9, "max_tokens": 1, **more})
        assert not [chunk for chunk in told if "prompt_progress" in chunk]


# What is in memory


def test_the_memory_of_the_last_answer(server: Server) -> None:
    answer = server.complete(WORDS * 30, max_tokens=1, prefill=SPARSE | {"dense_tail": 0}).json()
    name = answer["id"]
    memory = server.get(f"/memory/{name}").json()
    assert "".join(memory["tokens"]) == WORDS * 30
    assert memory["memory_size"] == 32
    assert memory["boundaries"] == math.ceil(answer["usage"]["prompt_tokens"] / 64) - 1
    for boundary in range(memory["boundaries"]):
        counts = server.get(f"/memory/{name}/counts?boundary={boundary}&layer=1").json()["counts"]
        assert len(counts) == answer["usage"]["prompt_tokens"]
        assert sum(counts) == memory["heads"] * 32
        end = 64 * (boundary + 1)
        assert counts[end - 16 : end] == [memory["heads"]] * 16  # the local window
        assert not any(counts[end:])
    for wrong in (f"boundary={memory['boundaries']}&layer=0", f"boundary=0&layer={memory['layers']}"):
        error_of(server.get(f"/memory/{name}/counts?{wrong}"), 400)
    server.complete("x", max_tokens=0)
    error_of(server.get(f"/memory/{name}"), 404)
