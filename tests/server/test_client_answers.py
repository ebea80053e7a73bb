"""Answers in one piece, as the official client asks for them and reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.server.running import Server

ASK = [{"role": "user", "content": "Name a colour."}]


def test_chat(openai: Any) -> None:
    answer = openai.chat.completions.create(model="tool-llama", messages=ASK, max_tokens=6, seed=1)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tool-llama"
    (choice,) = answer.choices
    assert (choice.index, choice.message.role) == (0, "assistant")
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6


def test_a_prompt_is_read_anew_where_the_cache_is_to_have_no_say(openai: Any) -> None:
    def ask(**extra: Any) -> Any:
        answer = openai.chat.completions.create(
            model="tool-llama", messages=ASK, max_tokens=6, temperature=0, extra_body=extra
        )
        return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens

    first, _ = ask(cache_prompt=False)
    assert ask(cache_prompt=False) == (first, 0)
    ask()
    assert ask(cache_prompt=False) == (first, 0)


def test_completion_has_16_tokens_unless_told_otherwise(openai: Any) -> None:
    answer = openai.completions.create(
        model="any", prompt="def f(x):", temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 16


def test_logit_bias_forces_and_bans(openai: Any, server: Server) -> None:
    token = server.post("/tokenize", {"content": " the"}).json()["tokens"][0]
    forced = openai.completions.create(
        model="m", prompt="x", max_tokens=3, temperature=0, logit_bias={str(token): 1000}
    )
    assert forced.choices[0].text == " the the the"
    best = openai.completions.create(model="m", prompt="x", max_tokens=1, temperature=0, logprobs=1)
    first = server.post("/tokenize", {"content": best.choices[0].text}).json()["tokens"][0]
    banned = openai.completions.create(
        model="m", prompt="x", max_tokens=1, temperature=0, logit_bias={str(first): -1000}
    )
    assert banned.choices[0].text != best.choices[0].text


def test_penalties_change_a_repeating_answer(openai: Any) -> None:
    def text(**penalties: Any) -> str:
        answer = openai.completions.create(
            model="m", prompt="a a a a a a a a", max_tokens=16, temperature=0, **penalties
        )
        return str(answer.choices[0].text)

    plain = text()
    assert text(frequency_penalty=2.0, presence_penalty=2.0) != plain
    assert text(extra_body={"repetition_penalty": 2.0}) != plain
    assert text(frequency_penalty=0.0, presence_penalty=0.0) == plain


@pytest.mark.parametrize(
    "narrow", [{"top_p": 0.0}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}]
)
def test_the_narrowest_sampling_is_greedy(openai: Any, narrow: dict[str, Any]) -> None:
    def text(**sampling: Any) -> str:
        answer = openai.completions.create(model="m", prompt="print(", max_tokens=8, **sampling)
        return str(answer.choices[0].text)

    assert text(temperature=1.5, seed=7, **narrow) == text(temperature=0)


def test_a_developer_is_a_system(openai: Any) -> None:
    def tokens(role: str) -> int:
        messages = [{"role": role, "content": "Be brief."}, *ASK]
        answer = openai.chat.completions.create(model="m", messages=messages, max_tokens=1)
        return int(answer.usage.prompt_tokens)

    assert tokens("developer") == tokens("system")


# Log-probabilities, checked with the generator's own logits and a float64 log-softmax of NumPy's


def log_softmax(logits: Any) -> Any:
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max()
    return wide - np.log(np.exp(wide).sum())


def test_chat_logprobs_are_the_models_own(openai: Any, server: Server, tiny_generator: Any) -> None:
    answer = openai.chat.completions.create(
        model="m", messages=ASK, max_tokens=8, seed=3, temperature=1.3, logprobs=True, top_logprobs=5
    )
    text = (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nName a colour.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    logits = tiny_generator.prefill(server.post("/tokenize", {"content": text}).json()["tokens"])
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    vocabulary = tokens_by_bytes(server)
    for entry in content:
        expected = log_softmax(logits)
        token = vocabulary[bytes(entry.bytes)]
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        assert len(entry.top_logprobs) == 5
        best = np.sort(expected)[::-1][:5]
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(list(best), abs=1e-4)
        for top in entry.top_logprobs:
            assert top.logprob == pytest.approx(expected[vocabulary[bytes(top.bytes)]], abs=1e-4)
        logits = tiny_generator.decode(token)
    assert b"".join(bytes(entry.bytes) for entry in content) == answer.choices[0].message.content.encode()


def test_completion_logprobs_are_the_models_own(openai: Any, server: Server, tiny_generator: Any) -> None:
    answer = openai.completions.create(model="m", prompt="x = 1\n", max_tokens=6, temperature=0, logprobs=2)
    told = answer.choices[0].logprobs
    logits = tiny_generator.prefill(
        server.post("/tokenize", {"content": "x = 1\n", "add_special": True}).json()["tokens"]
    )
    for text, logprob, top, offset in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset, strict=True
    ):
        expected = log_softmax(logits)
        assert logprob == pytest.approx(expected.max(), abs=1e-4)
        assert sorted(top.values(), reverse=True) == pytest.approx(sorted(expected)[:-3:-1], abs=1e-4)
        assert answer.choices[0].text[offset:].startswith(text)
        logits = tiny_generator.decode(int(expected.argmax()))


def tokens_by_bytes(server: Server) -> dict[bytes, int]:
    """Ids of all tokens of the example's vocabulary by the bytes that they stand for."""
    from tests.conftest import EXAMPLE

    from h2o_server.answers.grammar import GrammarCompiler

    compiler = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [1])
    return {compiler.token_bytes(token): token for token in reversed(range(4096))}
