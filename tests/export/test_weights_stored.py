"""`weights=stored`: each matrix in the format that its own blocks have in the file, beside the file's floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.bundles import export, random_ids, relative_error
from tests.reference import checkpoints, gguf_files
from transformers import AutoModelForCausalLM

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.weight_spec import matrices_of_layers
from h2o_export.exporter import ExportOptions
from h2o_export.preview import preview_export
from h2o_export.validation.tokens import PROMPT
from h2o_export.validation.validate import validate
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.model_spec import FormatShare
from h2o_runtime.policies.prefill import Full
from h2o_runtime.text import Tokenizer

# As llama.cpp mixes types in a file, more of them.
MIX = {
    "attn_q": Kind.Q4_0,
    "attn_k": Kind.Q4_K,
    "attn_v": Kind.Q6_K,
    "attn_output": Kind.IQ4_NL,
    "ffn_gate": Kind.Q5_0,
    "ffn_up": Kind.Q5_1,
    "blk.0.ffn_down": Kind.Q4_1,
    "blk.1.ffn_down": Kind.F16,
    "token_embd": Kind.Q8_0,
    "output": Kind.Q6_K,
}
FORMATS = {
    "q_proj": "int4",
    "k_proj": "int4+offset",
    "v_proj": "int8",
    "o_proj": "int8",
    "gate_proj": "int8",
    "up_proj": "int8",
    "0.mlp.down_proj": "int4+offset",
    "1.mlp.down_proj": "float32",
}
# By which share of a block's largest value a stored one may differ: of what 8 bits round, half a step.
BOUNDS = {"v_proj": 0.5 / 127, "up_proj": 0.5 / 127, "k_proj": 1e-6, "down_proj": 1e-6}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mixed")
    shape = {"hidden": 256, "query_heads": 4, "kv_heads": 4, "head_dim": 64}
    folder = checkpoints.make_checkpoint(root / "checkpoint", **shape)  # type: ignore[arg-type]
    return gguf_files.write(folder, root / "model.gguf", Kind.Q8_0, kinds=MIX)


@pytest.fixture(scope="module")
def bundle(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(file, tmp_path_factory.mktemp("stored") / "bundle", weights="stored")


def expected(name: str) -> str:
    return next(form for part, form in FORMATS.items() if f"{part}.weight" in name)


def test_each_matrix_has_the_format_of_its_blocks(file: Path, bundle: Path) -> None:
    weights = Manifest.read(bundle).model.weights
    assert weights is not None
    assert (weights.projections, weights.head) == ("int8", "int8")
    names = matrices_of_layers(open_checkpoint(str(file)).plan)
    assert {name: weights.named.get(name, "int8") for name in names} == {
        name: expected(name) for name in names
    }
    matrices = {form: [name for name in names if expected(name) == form] for form in set(FORMATS.values())}
    kept = {"int4": 2, "int4+offset": 3, "int8": 4, "float32": 0}  # o and gate, of 8 bits
    assert weights.formats == {
        form: FormatShare(
            matrices=len(mine), kept=kept[form], elements=sum(int(np.prod(names[name])) for name in mine)
        )
        for form, mine in matrices.items()
    }
    told = preview_export(open_checkpoint(str(file)), ExportOptions(str(file), bundle)).model.weights
    assert told == weights, "what a dry run tells"


def test_values_are_the_files_or_within_half_a_step(file: Path) -> None:
    opened = open_checkpoint(str(file))
    formats = ExportOptions(str(file), file.parent).formats(opened)
    for name, shape in matrices_of_layers(opened.plan).items():
        truth = opened.tensor(name, shape)
        stored = formats.of_layers(name).rounded(opened, name, shape)
        bound = next((share for part, share in BOUNDS.items() if part in name), 0.0)
        largest = truth.view(shape[0], -1, 32).abs().amax(2, keepdim=True)
        assert bool(((stored - truth).view(shape[0], -1, 32).abs() <= bound * 1.0001 * largest).all()), name


@pytest.mark.slow
def test_logits_are_transformers_with_the_same_weights(file: Path, bundle: Path) -> None:
    found = validate(bundle, open_checkpoint(str(file)), lambda stage: None)
    assert found.passed
    assert found.relative_error <= found.tolerance
    ids = random_ids(40)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    with torch.inference_mode():
        truth = model(torch.from_numpy(ids)[None]).logits[0, -1].numpy()
    for form in ("exact", "integer", "native"):
        with Generator.load(bundle, dense_form=form) as generator:  # type: ignore[arg-type]
            assert relative_error(generator.prefill(ids, Full()), truth) < 0.02
    text = np.array(Tokenizer.load(bundle).encode(PROMPT)[: found.tokens])
    with torch.inference_mode():
        of_text = model(torch.from_numpy(text)[None]).logits[0].double().log_softmax(-1).numpy()
    better = of_text[np.arange(len(text) - 1), text[1:]].mean()
    with Generator.load(bundle, dense_form="exact", attention_precision="float32") as generator:
        ours = generator.logprobs(text, Full()).astype(np.float64).mean()
    assert found.perplexity_loss == pytest.approx(np.expm1(better - ours), abs=1e-4)


def test_int4_rounds_what_the_file_has_in_more_bits(file: Path, tmp_path: Path) -> None:
    weights = Manifest.read(export(file, tmp_path / "bundle", weights="int4", calibrated=True)).model.weights
    assert weights is not None
    assert weights.compensated
    assert {form: share.kept for form, share in weights.formats.items()} == {"int4": 2, "int4+offset": 3}
    assert weights.formats["int4"].matrices == 11


def test_a_checkpoint_of_floats_stays_floats(small_checkpoint: Path, tmp_path: Path) -> None:
    weights = Manifest.read(export(small_checkpoint, tmp_path / "bundle", weights="stored")).model.weights
    assert weights is not None
    assert (weights.projections, weights.head, weights.block_size) == ("float32", "float32", None)
