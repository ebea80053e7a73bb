"""Bundles of latent models: what a graph of experts touches, integer weights, engines, comparisons and dry runs."""

from __future__ import annotations

import json
import math
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.external_data_helper import ExternalDataInfo
from tests import bundles, latent_models
from tests.engines import tensorrt_rtx
from tests.latent_models import EXPERTS, MODELS

from h2o_cli.arithmetic import attention_flop, decode_bytes, dense_flop
from h2o_cli.compare import main as compare
from h2o_cli.export import main as export
from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.engines.network import PlanBuilder
from h2o_export.engines.profiles import ProfileLimits, make_profiles
from h2o_export.validation.validate import validate
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import Full

pytestmark = pytest.mark.slow

FULL = Full()


@pytest.fixture(scope="module")
def bundle(shared_folder: Path) -> Path:
    """Of the model with mixtures of experts in layers 1 and 2."""
    return latent_models.golden_bundle(shared_folder, MODELS[2])


def first_logits(bundle: Path) -> np.ndarray[Any, Any]:
    with Generator.load(bundle, context=8, device="cpu", threads=1) as model:
        return model.prefill([5], FULL).copy()


def test_one_row_touches_the_chosen_experts_alone(bundle: Path, tmp_path: Path) -> None:
    """Weights that are no numbers show where they are used: of 8 experts, here in pairs, in 2."""
    whole = first_logits(bundle)
    graph = onnx.load(bundle / "onnx" / "dense_02.onnx", load_external_data=False).graph  # layer 1's experts
    where = {tensor.name: ExternalDataInfo(tensor) for tensor in graph.initializer if tensor.external_data}
    touched = []
    for first in range(0, 8, 2):
        copy = shutil.copytree(bundle, tmp_path / str(first))
        for expert, matrix in product((first, first + 1), ("gate_proj", "up_proj", "down_proj")):
            info = where[f"after.mlp.experts.{expert}.{matrix}.weight"]
            file = copy / "onnx" / info.location
            weights = np.memmap(file, np.float32, "r+", info.offset, (info.length // 4,))
            weights[:] = np.nan
            weights.flush()
        logits = first_logits(copy)
        touched.append(bool(np.isnan(logits).any()))
        if not touched[-1]:
            np.testing.assert_array_equal(logits, whole)
    assert 1 <= sum(touched) <= 2


def test_w_uk_and_w_uv_are_stored_once(bundle: Path) -> None:
    found: dict[str, set[tuple[str, int]]] = {}
    for step in ("absorb", "contract", "expand"):
        graph = onnx.load(bundle / "onnx" / f"{step}_01.onnx", load_external_data=False).graph
        for tensor in graph.initializer:
            if tensor.external_data:
                info = ExternalDataInfo(tensor)
                found.setdefault(tensor.name, set()).add((info.location, info.offset))
    assert {name: len(places) for name, places in found.items()} == {"keys": 1, "values": 1}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose matrices all have blocks of 16."""
    folder = tmp_path_factory.mktemp("wide")
    latent_models.make(folder, "deepseek_v3", **{**EXPERTS, "q_lora_rank": 32})
    return folder


def test_integer_weights(wide: Path, tmp_path: Path) -> None:
    """Experts too, each rounded to the nearest; the router, and W_uk and W_uv, are floats."""
    made = bundles.export(wide, tmp_path / "int4", weights="int4", block_size=16, calibrated=True)
    weights = Bundle.open(made).manifest.model.weights
    assert weights is not None
    assert weights.compensated
    assert validate(made, open_checkpoint(str(wide)), lambda stage: None).passed
    graph = onnx.load(made / "onnx" / "dense_02.onnx", load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert kinds["after.mlp.gate.weight"] == onnx.TensorProto.FLOAT
    assert kinds["after.mlp.experts.3.up_proj.weight"] == onnx.TensorProto.INT4
    ids, found = np.random.default_rng(2).integers(0, 128, 30), {}
    for form in ("exact", "native", "blocks"):
        with Generator.load(made, context=40, device="cpu", threads=1, dense_form=form) as model:  # type: ignore[arg-type]
            found[form] = model.prefill(ids, FULL).copy()
    for form in ("native", "blocks"):
        assert np.corrcoef(found[form], found["exact"])[0, 1] > 0.98, form


def test_weights_that_cannot_be_made_are_refused_at_once(wide: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Anything.")
    with pytest.raises(ConfigError, match="rounded to the nearest: leave out `calibrate`"):
        bundles.export(wide, tmp_path / "int8", weights="int8", block_size=16, calibrate=text)


def test_engines_are_built(bundle: Path) -> None:
    opened, builder = Bundle.open(bundle), PlanBuilder(tensorrt_rtx(), (86,))
    limits = ProfileLimits.of(opened.manifest.model, Full(batch_size=64), 128)
    for name in ("dense_02", "absorb_01", "expand_01"):
        graph = opened.graph(name)
        assert len(memoryview(builder.build(opened.path(graph), make_profiles(graph, limits)))) > 1000


def test_compare_takes_the_small_graphs_and_both_forms(bundle: Path, shared_folder: Path) -> None:
    checkpoint = latent_models.golden_checkpoint(shared_folder, MODELS[2])
    flags = ["-n", "150"]
    stages = ["--stage", "dense", "--stage", "pipeline"]
    done = CliRunner().invoke(
        compare, [str(bundle), "--checkpoint", str(checkpoint), *flags, *stages, "--json"]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    graphs = {row["graph"] for row in rows}
    assert {"expand_00", "absorb_01", "contract_02", "full, absorbed", "full, expanded"} <= graphs


def test_a_dry_run_tells_latents_beside_keys_and_values(shared_folder: Path) -> None:
    folder = latent_models.golden_checkpoint(shared_folder, MODELS[2])
    raw = json.loads((folder / "config.json").read_text())
    layers, heads = raw["num_hidden_layers"], raw["num_attention_heads"]
    expanded = raw["qk_nope_head_dim"] + raw["qk_rope_head_dim"] + raw["v_head_dim"]
    told = json.loads(CliRunner().invoke(export, [str(folder), "--dry-run", "--json"]).stdout)
    assert told["token_bytes"] == 4 * layers * (raw["kv_lora_rank"] + raw["qk_rope_head_dim"])
    assert told["expanded_token_bytes"] == 4 * layers * heads * expanded
    shown = CliRunner().invoke(export, [str(folder), "--dry-run"]).output
    assert "times less than its keys and values" in shown


def test_floors_count_what_a_token_needs(shared_folder: Path) -> None:
    """Every matrix once a token, but of experts the chosen ones, and of the embedding a row."""
    checkpoint = open_checkpoint(str(latent_models.golden_checkpoint(shared_folder, MODELS[2])))
    model = Bundle.open(latent_models.golden_bundle(shared_folder, MODELS[2])).manifest.model
    sizes = {
        name: math.prod(shape)
        for name, shape in checkpoint_tensors(checkpoint.plan).items()
        if len(shape) == 2
    }
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    every = sum(sizes.values()) - sizes["model.embed_tokens.weight"] - experts * 6 // 8
    assert dense_flop(model, 1) == 2 * every
    assert attention_flop(model, FULL, 1) == 3 * 4 * 2 * (24 + 12)
    unread = sizes["model.embed_tokens.weight"] + experts * 6 // 8
    assert decode_bytes(model, 10) == model.weight_bytes - 4 * unread + 10 * model.token_bytes
