"""Families whose layer is not Llama's: bundles against transformers, at prompts of 1 to 500 tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.bundles import export, random_ids, relative_error
from tests.family_models import MODELS, VOCAB, save
from transformers import AutoModelForCausalLM

from h2o_export.checkpoints import open_checkpoint
from h2o_export.validation.validate import validate
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import Full

pytestmark = pytest.mark.slow

FULL = Full(batch_size=200)
CONTEXT = 512
TEXT = 290  # tokens before an answer
PROMPTS = (1, 63, TEXT, 490)  # the last one in three logical batches
ORIGINAL = {"phi3-longrope": 32}  # tokens of a text up to which transformers rotates it otherwise


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    """Models this small are slower on several threads, the more so when tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@torch.inference_mode()
def logits_of(model: Any, ids: NDArray[np.int64], lengths: Iterable[int]) -> NDArray[np.float32]:
    """Of the last token of each beginning of a text: [lengths, vocabulary]. None of them sees a later token."""
    last = torch.tensor([length - 1 for length in lengths])
    found: NDArray[np.float32] = model(torch.from_numpy(ids)[None], logits_to_keep=last).logits[0].numpy()
    return found


def learned_numbers(model: Any) -> int:
    """Parameters, and the buffers that checkpoints store."""
    stored = [buffer for name, buffer in model.named_buffers() if name in model.state_dict()]
    return sum(one.numel() for one in (*model.parameters(), *stored))


# A layer of each arrangement. Other tests have Granite's factors (its hybrid's too), rotations of Ministral 3,
# states of Qwen, and convolutions alone.
DAILY = {
    *("olmo2-grouped", "phi3-longrope", "ernie4_5_moe-interval", "hunyuan-stretched", "glm4-plain"),
    *("gemma2-capped", "gemma4-experts", "gpt_oss-clamped", "lfm2_moe-biased"),
    *("granitemoehybrid-mixed", "nemotron_h-mixed"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DAILY else pytest.mark.nightly) for name in MODELS]
)
def test_a_family_computes_what_transformers_computes(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path / "checkpoint", name)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    bundle = export(folder, tmp_path / "bundle", context=CONTEXT)
    ids = random_ids(max(PROMPTS), vocab=VOCAB)
    with Generator.load(bundle, context=CONTEXT) as generator:
        assert generator.model.parameters == learned_numbers(theirs)
        lengths = [length for length in PROMPTS if length > ORIGINAL.get(name, 0)]
        for length, expected in zip(lengths, logits_of(theirs, ids, lengths), strict=True):
            logits = generator.prefill(ids[:length], FULL)  # each reads on behind the one before
            assert relative_error(logits, expected) < 1e-4
        generator.reset()
        fresh = generator.prefill(ids[:TEXT], FULL).copy()
        generator.reset()
        generator.prefill(ids[: TEXT - 10], FULL)
        for token in ids[TEXT - 10 : TEXT]:
            logits = generator.decode(int(token))
        assert relative_error(logits, fresh) < 1e-5
        greedy = []
        for _ in range(12):
            greedy.append(int(logits.argmax()))
            logits = generator.decode(greedy[-1])
    with Generator.load(bundle, context=CONTEXT, dense_form="native") as generator:  # not every CPU's default
        assert relative_error(generator.prefill(ids[:TEXT], FULL), fresh) < 1e-4
    text = np.append(ids[:TEXT], greedy)
    theirs_of_it = logits_of(theirs, text, range(TEXT, len(text)))  # their greedy answer, if ours is the same
    assert relative_error(fresh, theirs_of_it[0]) < 1e-4
    assert greedy == theirs_of_it.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "dtype", "weights"),
    [
        ("qwen3_next-partly-dense", "float32", "int8"),
        ("lfm2-numbered", "float16", "float"),
        pytest.param("qwen3_moe-normalized", "float32", "int4", marks=pytest.mark.nightly),
        pytest.param("granite-tied", "float16", "float", marks=pytest.mark.nightly),
        *(
            pytest.param(name, "float32", "int8", marks=pytest.mark.nightly)
            for name in ("phi3-longrope", "gpt_oss-clamped", "granitemoehybrid-mixed", "gemma4")
        ),
    ],
)
def test_other_weights_are_within_their_bounds(tmp_path: Path, name: str, dtype: Any, weights: str) -> None:
    folder = save(tmp_path / "checkpoint", name)
    calibrated = weights != "float"
    bundle = export(folder, tmp_path / "bundle", dtype, CONTEXT, weights=weights, calibrated=calibrated)
    assert validate(bundle, open_checkpoint(str(folder), CONTEXT), lambda stage: None).passed
