"""A bundle as a model of lm-eval: what the harness asks, and what the generator says itself.

Without lm-eval an empty class stands for its base class, which has nothing that the adapter uses.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.conftest import EXAMPLE

from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import Tokenizer

FULL = Full()


def asked(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@pytest.fixture
def adapter() -> Iterator[Any]:
    """The class `BundleModel`."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("lm_eval") is None:
            stand_in = ModuleType("lm_eval.api.model")
            patch.setattr(stand_in, "LM", object, raising=False)
            for name in ("lm_eval", "lm_eval.api"):
                patch.setitem(sys.modules, name, ModuleType(name))
            patch.setitem(sys.modules, stand_in.__name__, stand_in)
        yield importlib.import_module("h2o_cli.eval.harness").BundleModel
    sys.modules.pop("h2o_cli.eval.harness")


@pytest.fixture
def model(adapter: Any, tiny_generator: Generator, tiny_bundle: Path) -> Any:
    return adapter(tiny_generator, str(tiny_bundle), FULL)


ASKED = [{"role": "user", "content": "What is a parser?"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "It reads"}]


@pytest.mark.parametrize(
    ("history", "begins"), [(ASKED, True), (ASKED, False), (BEGUN, True), (BEGUN, False)]
)
def test_a_chat_template_ends_where_the_answer_begins_or_goes_on(
    adapter: Any, history: list[dict[str, str]], begins: bool
) -> None:
    """An assistant's message without a new one after it is the beginning of the answer, as the harness has it."""
    theirs = pytest.importorskip("transformers").PreTrainedTokenizerFast.from_pretrained(EXAMPLE)
    continued = history is BEGUN and not begins
    expected = theirs.apply_chat_template(
        history, tokenize=False, add_generation_prompt=begins, continue_final_message=continued
    )
    assert expected.endswith("It reads") is continued
    assert adapter(None, str(EXAMPLE), FULL).apply_chat_template(history, begins) == expected


def test_a_continuations_likelihood(model: Any, tiny_generator: Generator, tiny_bundle: Path) -> None:
    context, more = "The module defines a class", " and a function"
    ((found, greedy),) = model.loglikelihood([asked(context, more)])
    tokenizer = Tokenizer.load(tiny_bundle)
    ids, known = tokenizer.encode(context + more), tokenizer.encode(context)
    truth = tiny_generator.logprobs(ids, FULL)
    assert found == pytest.approx(float(truth[len(known) - 1 :].sum()), abs=1e-3)
    assert not greedy
    (rolling,) = model.loglikelihood_rolling([asked(context + more)])
    assert rolling == pytest.approx(float(truth.sum()), abs=1e-3)


def test_greedy_answers_end_where_they_should(model: Any) -> None:
    prompt = "The module defines a class"
    (whole,) = model.generate_until([asked(prompt, {"max_gen_toks": 12, "until": []})])
    end = whole[len(whole) // 2 :][:2]
    (cut,) = model.generate_until([asked(prompt, {"max_gen_toks": 12, "until": [end]})])
    assert whole.startswith(cut)
    assert end not in cut
    ((_, greedy),) = model.loglikelihood([asked(prompt, whole)])
    assert isinstance(greedy, bool)


def test_long_texts_are_read_in_windows(adapter: Any, tiny_bundle: Path) -> None:
    with Generator.load(tiny_bundle, context=32, threads=1) as generator:
        model = adapter(generator, str(tiny_bundle), FULL)
        text = "The module defines a class. " * 20
        (found,) = model.loglikelihood_rolling([asked(text)])
        ids = np.array(Tokenizer.load(tiny_bundle).encode(text))
        parts = [generator.logprobs(ids[at : at + 32], FULL) for at in range(0, len(ids) - 1, 31)]
    assert found == pytest.approx(sum(float(part.sum()) for part in parts), abs=1e-3)
    assert sum(map(len, parts)) == len(ids) - 1
