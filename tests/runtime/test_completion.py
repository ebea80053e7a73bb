"""From text to text: pieces, stop strings, ends of answers, timings, conversations and cancellation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from h2o_runtime import Generator, Sampling, Watch
from h2o_runtime.answers.completion import Completion, TextDelta, Timings
from h2o_runtime.answers.events import Finished, Prefilled, TokenGenerated
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.errors import BundleError, ConfigError, ContextOverflowError, InputError
from h2o_runtime.execution.answer_steps import DraftCount
from h2o_runtime.policies.prefill import Query
from h2o_runtime.text import ChatTemplate, Tokenizer
from h2o_runtime.text_model import TextModel

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
TEXT = "The module defines a class that reads the"


@pytest.fixture
def model(tiny_generator: Generator) -> TextModel:
    return TextModel(tiny_generator, Tokenizer.load(EXAMPLE), ChatTemplate.load(EXAMPLE))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def run(model: TextModel, request: Request, watch: Watch | None = None) -> tuple[list[Any], Completion]:
    """All events but the last, and the last."""
    *events, completion = model.complete(request, watch)
    assert isinstance(completion, Completion)
    return events, completion


def scripted(tokens: Sequence[int]) -> TextModel:
    """A model that answers everything with `tokens`."""

    def generate(request: Request, *args: Any) -> Iterator[Any]:
        yield Prefilled(len(request.prompt.ids), 0, PrefillTimer())
        for token in tokens:
            yield TokenGenerated(SampledToken(token, -1.0))
        yield Finished("length", len(tokens))

    generator: Any = SimpleNamespace(
        run=generate,
        step=None,
        context=1000,
        length=0,
        spec=SimpleNamespace(forgets=lambda tokens: 0),
        session=None,
        drafts=DraftCount(),
        seen=lambda: None,
        others=(),
        pool=SimpleNamespace(transcripts=list, share=lambda session: None),
        model=SimpleNamespace(vocab_size=4096),
        default_policy=Query(),
    )
    return TextModel(generator, Tokenizer.load(EXAMPLE), BundleError("no template"))


# The answer's text


def test_pieces_joined_are_the_answer(model: TextModel) -> None:
    events, answer = run(model, Request(model.text_prompt(TEXT), max_tokens=40))
    prefilled, *pieces = events
    ids = [sampled.token for sampled in answer.tokens]
    assert isinstance(prefilled, Prefilled)
    assert all(isinstance(piece, TextDelta) and piece.text for piece in pieces)
    assert "".join(piece.text for piece in pieces) == answer.text == model.tokenizer.decode(ids)
    assert sum((piece.tokens for piece in pieces), ()) == answer.tokens
    assert (answer.finish_reason, answer.stop, len(ids)) == ("length", None, 40)


def test_a_stop_string_never_gets_out() -> None:
    text = "one two three, four five"
    tokens = Tokenizer.load(EXAMPLE).encode(text)
    for begin in range(1, len(text) - 4):
        stop = text[begin : begin + 4]
        events, answer = run(scripted(tokens), Request(Prompt((5,)), stop=("nowhere", stop)))
        assert answer.text == text[: text.index(stop)] == "".join(piece.text for piece in events[1:])
        assert (answer.finish_reason, answer.stop) == ("stop", stop)


def test_a_stop_string_does_not_see_special_tokens() -> None:
    """Text on both sides of one is joined, as in the answer."""
    answer = with_special_token("one", "two", stop="etw")
    assert (answer.text, answer.stop) == ("on", "etw")
    assert with_special_token("one", "two", stop="eot").text == "onetwo"


@pytest.mark.parametrize("stop", ["|>", "eot", "<|eot_id|>", "e<|", "|>t", "etw"])
def test_a_stop_string_ends_no_answer_inside_a_special_token_that_is_shown(stop: str) -> None:
    """It is a mark for the dialect, of which half would be taken for text."""
    answer = with_special_token("one", "two", stop=stop, shown=True)
    assert (answer.text, answer.stop) == ("one<|eot_id|>two", None)
    assert with_special_token("one", "two", stop="two", shown=True).text == "one<|eot_id|>"


def with_special_token(before: str, after: str, stop: str, shown: bool = False) -> Completion:
    """The answer of a model that says a special token between two texts."""
    encode = Tokenizer.load(EXAMPLE).encode
    first, special, rest = (encode(text, add_special_tokens=False) for text in (before, "<|eot_id|>", after))
    request = Request(Prompt((5,)), stop=(stop,), shown=frozenset(special if shown else ()))
    return run(scripted([*first, *special, *rest]), request)[1]


# Its end


def test_end_tokens_are_eos_and_what_ends_a_turn(model: TextModel) -> None:
    raw = model.tokenizer.encode("<|end_of_text|><|eot_id|>", add_special_tokens=False)
    assert model.end_ids == set(raw)
    assert len(raw) == 2


def test_an_end_token_is_not_part_of_the_answer(model: TextModel) -> None:
    for token in model.end_ids:
        eager = Sampling(logit_bias={token: 1e4})
        events, answer = run(model, Request(model.text_prompt(TEXT), 5, sampling=eager))
        assert (answer.text, answer.tokens, answer.finish_reason) == ("", (), "stop")
        assert len(events) == 1
        assert answer.timings.predicted_n == answer.timings.predicted_per_token_ms == 0


def test_ignore_eos_gives_the_length_that_was_asked_for(model: TextModel) -> None:
    eager = Sampling(logit_bias=dict.fromkeys(model.end_ids, 1e4))
    _, answer = run(model, Request(model.text_prompt(TEXT), 5, sampling=eager, ignore_eos=True))
    assert len(answer.tokens) == 5
    assert not model.end_ids.intersection(sampled.token for sampled in answer.tokens)


def test_the_seed_is_told_and_repeats_the_answer(model: TextModel) -> None:
    request = Request(model.text_prompt(TEXT), 16, sampling=Sampling(temperature=1.5))
    _, first = run(model, request)
    again = dataclasses.replace(request, sampling=Sampling(temperature=1.5, seed=first.seed))
    _, second = run(model, again)
    assert (second.text, second.seed) == (first.text, first.seed)


# Timings


def test_timings_have_llama_cpps_names() -> None:
    timings = Timings(cache_n=7, prompt_n=20, prompt_ms=50.0, predicted_n=4, predicted_ms=8.0)
    assert dataclasses.asdict(timings) == {
        "cache_n": 7,
        "prompt_n": 20,
        "prompt_ms": 50.0,
        "prompt_per_token_ms": 2.5,
        "prompt_per_second": 400.0,
        "predicted_n": 4,
        "predicted_ms": 8.0,
        "predicted_per_token_ms": 2.0,
        "predicted_per_second": 500.0,
        "draft_n": 0,
        "draft_n_accepted": 0,
    }
    nothing = Timings(cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0)
    assert all(math.isfinite(value) for value in dataclasses.astuple(nothing))


# Conversations


def test_a_conversation_keeps_the_tokens_that_were_said(model: TextModel) -> None:
    # So hot that the tokens are not those which the tokenizer would choose for the same text.
    ban = dict.fromkeys(model.tokenizer.special_ids, -math.inf)
    messages, earlier = [user("Hi")], Prompt(())
    for turn in range(3):
        prompt = model.chat_prompt(messages)
        assert prompt.ids[: len(earlier.ids)] == earlier.ids
        assert model.tokenizer.decode(prompt.ids, skip_special_tokens=False) == prompt.text
        hot = Sampling(temperature=30.0, seed=turn, logit_bias=ban)
        _, answer = run(model, Request(prompt, 60, sampling=hot))
        assert answer.timings.cache_n == max(len(earlier.ids) - 1, 0)
        said = [sampled.token for sampled in answer.tokens]
        assert said != model.tokenizer.encode(answer.text)
        earlier = Prompt((*prompt.ids, *said))
        messages = [*messages, {"role": "assistant", "content": answer.text}, user("More")]


def test_other_words_than_those_said_are_encoded_afresh(model: TextModel) -> None:
    prompt = model.chat_prompt([user("Hi")])
    _, answer = run(model, Request(prompt, 8))
    for said in (answer.text + "!", answer.text[:-1], "else"):
        messages = [user("Hi"), {"role": "assistant", "content": said}, user("More")]
        text = ChatTemplate.load(EXAMPLE).render(messages)
        assert list(model.chat_prompt(messages).ids) == model.tokenizer.encode(text, add_special_tokens=False)


def test_without_a_template_only_conversations_fail(model: TextModel) -> None:
    bare = TextModel(model.generator, model.tokenizer, BundleError("no chat template here"))
    assert bare.end_ids == model.tokenizer.eos_ids
    run(bare, Request(bare.text_prompt(TEXT), 1))
    with pytest.raises(BundleError, match="no chat template here"):
        bare.chat_prompt([user("Hi")])


# Cancellation and errors


def test_cancelled_while_answering_gives_what_there_is(model: TextModel) -> None:
    request = Request(model.text_prompt(TEXT), 20, ignore_eos=True)
    _, whole = run(model, request)
    seen: list[Any] = []
    for event in model.complete(request, Watch(cancelled=lambda: len(seen) >= 6)):
        seen.append(event)  # Prefilled, then a piece a token
    answer = seen[-1]
    assert (answer.finish_reason, len(answer.tokens)) == ("cancelled", 5)
    assert whole.text.startswith(answer.text)
    assert answer.text
    _, again = run(model, request)  # the model is as good as before
    assert again.text == whole.text


def test_cancelled_in_the_prompt_gives_nothing(model: TextModel, heldout_ids: NDArray[np.int64]) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    prompt = Prompt(tuple(heldout_ids[:2000].tolist()))
    events, answer = run(model, Request(prompt, 4), Watch(cancelled=cancelled))
    assert events == []
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", (), "cancelled")
    assert asked == 4


def test_what_cannot_be_answered_is_refused(model: TextModel) -> None:
    with pytest.raises(InputError, match="prompt is empty"):
        model.text_prompt("")
    with pytest.raises(InputError, match="empty"):
        model.chat_prompt([])
    with pytest.raises(InputError, match="prompt is empty"):
        run(model, Request(Prompt(())))
    with pytest.raises(ConfigError, match="max_tokens"):
        Request(Prompt((1,)), max_tokens=-1)
    with pytest.raises(ConfigError, match="stop"):
        Request(Prompt((1,)), stop=("",))
    with pytest.raises(ContextOverflowError):
        run(model, Request(Prompt((5,) * (model.generator.context + 1))))
