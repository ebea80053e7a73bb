"""LoRA adapters: the merged matrices against peft's, and adapters that do more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.bundles import export, random_ids, relative_error
from tests.reference import checkpoints

from h2o_export.checkpoints import Checkpoint, open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import CheckpointError
from h2o_runtime.policies.prefill import Full

# peft's own settings: names of modules and a regular expression, ranks and alphas by pattern, √rank.
BY_NAME = {
    "target_modules": ["q_proj", "down_proj"],
    "rank_pattern": {"layers.0.self_attn.q_proj": 6},
    "alpha_pattern": {r"layers\.\d+\.mlp\.down_proj": 3},
}
BY_EXPRESSION = {"target_modules": r".*\.1\.(self_attn|mlp)\.\w+_proj", "use_rslora": True}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one matrix, as files alone."""
    folder = tmp_path_factory.mktemp("adapter")
    drawn = torch.Generator().manual_seed(0)
    factors = {"A": torch.randn(4, 64, generator=drawn), "B": torch.randn(128, 4, generator=drawn)}
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file({f"{name}{part}.weight": factor for part, factor in factors.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}))
    return folder


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "model.layers.0.self_attn.q_proj.weight"


def trained(base: Path, folder: Path, settings: dict[str, Any]) -> Any:
    """An adapter after ten steps, in `folder` → transformers' model with the adapter merged by peft."""
    peft: Any = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(plain, peft.LoraConfig(r=4, lora_alpha=16, **settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    ids = torch.from_numpy(random_ids(60))[None]
    for _ in range(10):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return model.merge_and_unload()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "matrices"), [(BY_EXPRESSION, 7), pytest.param(BY_NAME, 4, marks=pytest.mark.nightly)]
)
def test_logits_equal_those_of_pefts_merged_model(
    base: Path, tmp_path: Path, settings: dict[str, Any], matrices: int
) -> None:
    merged = trained(base, tmp_path / "adapter", settings)
    opened = open_checkpoint(str(base), adapter=tmp_path / "adapter")
    expected = merged.state_dict()
    changed = 0
    for name, shape in checkpoint_tensors(opened.plan).items():
        torch.testing.assert_close(opened.tensor(name, shape), expected[name], rtol=0, atol=1e-6)
        changed += not torch.equal(expected[name], open_checkpoint(str(base)).tensor(name, shape))
    assert changed == matrices
    bundle = export(base, tmp_path / "bundle", adapter=tmp_path / "adapter")
    ids = random_ids(40)
    with torch.inference_mode():
        logits = merged(torch.from_numpy(ids)[None]).logits[0, -1].numpy()
    with Generator.load(bundle) as generator:
        assert relative_error(generator.prefill(ids, Full()), logits) < 1e-5


def test_the_manifest_says_where_the_adapter_is(base: Path, adapter: Path, tmp_path: Path) -> None:
    origin = Manifest.read(export(base, tmp_path / "bundle", weights="int4", adapter=adapter)).checkpoint
    assert (origin.source, origin.adapter) == (str(base.resolve()), str(adapter.resolve()))
    assert origin.sha256 == open_checkpoint(str(base), adapter=adapter).sha256()
    assert origin.sha256 != open_checkpoint(str(base)).sha256()


def test_other_matrices_stay_as_they_are(base: Path, adapter: Path) -> None:
    plain, changed = open_checkpoint(str(base)), open_checkpoint(str(base), adapter=adapter)
    factors = load_file(adapter / WEIGHTS)
    a, b = (factors[name].double() for name in sorted(factors))
    truth = plain.tensor(Q, (128, 64)).double() + 2 * b @ a
    torch.testing.assert_close(changed.tensor(Q, (128, 64)).double(), truth, rtol=1e-6, atol=1e-6)
    other = Q.replace("q_proj", "k_proj")
    assert torch.equal(changed.tensor(other, (64, 64)), plain.tensor(other, (64, 64)))


def altered(adapter: Path, folder: Path, *, settings: Any = None, tensors: Any = None) -> Path:
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(json.loads((adapter / CONFIG).read_text()) | (settings or {})))
    save_file(load_file(adapter / WEIGHTS) if tensors is None else tensors, folder / WEIGHTS)
    return folder


def opened(base: Path, adapter: Path) -> Checkpoint:
    checkpoint = open_checkpoint(str(base), adapter=adapter)
    check_checkpoint(checkpoint)
    return checkpoint


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3; only LORA can be merged"),
        ({"use_dora": True}, "has use_dora, which cannot be merged here; merge it by peft's"),
        ({"bias": "lora_only"}, "has bias, which cannot be merged here"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save, which"),
        ({"init_lora_weights": "pissa_niter_4"}, "has init_lora_weights, which"),
        (
            {"trainable_token_indices": [1], "alora_invocation_tokens": [2]},
            "alora_invocation_tokens, trainable_",
        ),
        ({"a_setting_of_tomorrow": 3}, "has a_setting_of_tomorrow, which"),
        ({"r": 8}, r"have the shapes \[4, 64\] and \[128, 4\], but adapter_config.json says rank 8"),
        ({"r": "4"}, "has '4' as r of 'model.layers.0.self_attn.q_proj'"),
        ({"rank_pattern": {"(": 4}}, "has a rank_pattern that cannot be read"),
        ({"rank_pattern": [4]}, "has a rank_pattern that cannot be read"),
    ],
)
def test_an_adapter_that_does_more_is_refused(
    base: Path, adapter: Path, tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    folder = altered(adapter, tmp_path / "altered", settings=settings)
    with pytest.raises(CheckpointError, match=rf"{folder}: .*{told}"):
        opened(base, folder)


PREFIX = "base_model.model.model."


@pytest.mark.parametrize(
    ("name", "shapes", "told"),
    [
        ("layers.0.self_attn.q_proj.lora_A.weight", [(4, 64)], "has only one factor of 'model.layers.0"),
        (
            "embed_tokens.lora_embedding_A",
            [(4, 64)],
            "is no factor of a matrix: adapters of embeddings, biases",
        ),
        (
            "layers.9.mlp.up_proj.lora_{}.weight",
            [(4, 64), (8, 4)],
            "changes 'model.layers.9.mlp.up_proj', which",
        ),
        ("layers.0.mlp.up_proj.lora_{}.weight", [(4, 8), (8, 4)], r"by \[8, 8\] numbers, but .* has \["),
    ],
)
def test_an_adapter_of_something_else_is_refused(
    base: Path, adapter: Path, tmp_path: Path, name: str, shapes: list[tuple[int, int]], told: str
) -> None:
    tensors = {
        PREFIX + name.format(part): torch.ones(shape) for part, shape in zip("AB", shapes, strict=False)
    }
    folder = altered(adapter, tmp_path / "altered", tensors=tensors)
    with pytest.raises(CheckpointError, match=told):
        opened(base, folder)


def test_a_folder_without_an_adapter_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"has no adapter_config.json, so it is not the folder of an adapter"
    ):
        opened(base, base)
    folder = altered(adapter, tmp_path / "altered")
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(
        CheckpointError, match=r"has no adapter_model.safetensors; convert adapter_model.bin to"
    ):
        opened(base, folder)
