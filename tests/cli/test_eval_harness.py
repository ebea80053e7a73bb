"""A bundle as a model of lm-eval: what the harness asks, and what the generator says itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from h2o_runtime.policies.prefill import Full

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'lm-eval[ruler]'")

from h2o_cli.eval.harness import BundleModel
from h2o_runtime import Generator
from h2o_runtime.text import Tokenizer

FULL = Full()


def asked(*args: Any) -> Any:
    return SimpleNamespace(args=args)


@pytest.fixture
def model(tiny_generator: Generator, tiny_bundle: Path) -> BundleModel:
    return BundleModel(tiny_generator, str(tiny_bundle), FULL)


def test_a_continuations_likelihood(model: BundleModel, tiny_generator: Generator, tiny_bundle: Path) -> None:
    context, more = "The module defines a class", " and a function"
    ((found, greedy),) = model.loglikelihood([asked(context, more)])
    tokenizer = Tokenizer.load(tiny_bundle)
    ids, known = tokenizer.encode(context + more), tokenizer.encode(context)
    truth = tiny_generator.logprobs(ids, FULL)
    assert found == pytest.approx(float(truth[len(known) - 1 :].sum()), abs=1e-3)
    assert not greedy
    (rolling,) = model.loglikelihood_rolling([asked(context + more)])
    assert rolling == pytest.approx(float(truth.sum()), abs=1e-3)


def test_greedy_answers_end_where_they_should(model: BundleModel) -> None:
    prompt = "The module defines a class"
    (whole,) = model.generate_until([asked(prompt, {"max_gen_toks": 12, "until": []})])
    end = whole[len(whole) // 2 :][:2]
    (cut,) = model.generate_until([asked(prompt, {"max_gen_toks": 12, "until": [end]})])
    assert whole.startswith(cut)
    assert end not in cut
    ((_, greedy),) = model.loglikelihood([asked(prompt, whole)])
    assert isinstance(greedy, bool)


def test_long_texts_are_read_in_windows(tiny_bundle: Path) -> None:
    with Generator.load(tiny_bundle, context=32, threads=1) as generator:
        model = BundleModel(generator, str(tiny_bundle), FULL)
        text = "The module defines a class. " * 20
        (found,) = model.loglikelihood_rolling([asked(text)])
        ids = np.array(Tokenizer.load(tiny_bundle).encode(text))
        parts = [generator.logprobs(ids[at : at + 32], FULL) for at in range(0, len(ids) - 1, 31)]
    assert found == pytest.approx(sum(float(part.sum()) for part in parts), abs=1e-3)
    assert sum(map(len, parts)) == len(ids) - 1
