"""AWQ, GPTQ and compressed-tensors folders: every value against float64, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.reference import checkpoints, packed_folders
from tests.reference.packed_folders import AWQ, GPTQ, Compressed, Packer

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.formats import FORMATS
from h2o_export.validation.soundness import check_checkpoint
from h2o_export.validation.validate import validate
from h2o_export.weights import WeightFile
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

Q = "model.layers.0.self_attn.q_proj"


def awq(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", **changes}


def gptq(bits: int = 4, **changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": False, **changes}


def compressed(form: str = "pack-quantized", group: int | None = 32, **changes: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    linear = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": linear},
        "ignore": ["lm_head"],
        **changes,
    }


# Name -> settings, packer, bits of the blocks (None: there are none) and their size.
FORMS: dict[str, tuple[dict[str, Any], Packer, int | None, int]] = {
    "awq": (awq(), AWQ(), 4, 32),
    "awq-symmetric": (awq(), AWQ(symmetric=True), 4, 32),
    "awq-16": (awq(group_size=16), AWQ(group=16), 4, 16),
    "gptq-4": (gptq(), GPTQ(), 4, 32),
    "gptq-4-zeros": (gptq(sym=False), GPTQ(symmetric=False), 4, 32),
    "gptq-8": (gptq(8), GPTQ(bits=8), 8, 32),
    "gptq-8-zeros": (gptq(8), GPTQ(bits=8, symmetric=False), None, 0),
    "gptq-2": (gptq(2), GPTQ(bits=2), 4, 32),
    "gptq-act-order": (gptq(desc_act=True), GPTQ(act_order=True), None, 0),
    "gptq-v2": (gptq(checkpoint_format="gptq_v2"), GPTQ(symmetric=False, stored_less_one=False), 4, 32),
    "gptq-no-index": (gptq(), GPTQ(with_index=False), 4, 32),
    "compressed-4": (compressed(), Compressed(), 4, 32),
    "compressed-4-row": (compressed(group=None), Compressed(group=0), 4, 0),
    "compressed-4-zeros": (compressed(), Compressed(symmetric=False), 4, 32),
    "compressed-8": (compressed(), Compressed(bits=8), 8, 32),
    "compressed-act-order": (compressed(), Compressed(act_order=True), None, 0),
    "compressed-int8": (compressed("int-quantized", None), Compressed(bits=8, group=0, packed=False), 8, 0),
    "compressed-int8-one": (
        compressed("naive-quantized", None),
        Compressed(bits=8, group=-1, packed=False),
        8,
        0,
    ),
    "compressed-int8-zeros": (
        compressed("int-quantized", None),
        Compressed(bits=8, group=0, packed=False, symmetric=False),
        None,
        0,
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("plain") / "model", layers=1)


@pytest.mark.parametrize("form", FORMS)
def test_every_value_is_what_float64_says(plain: Path, tmp_path: Path, form: str) -> None:
    settings, packer, bits, size = FORMS[form]
    truth = packed_folders.write(plain, tmp_path / "model", settings, packer)
    opened, original = open_checkpoint(str(tmp_path / "model")), open_checkpoint(str(plain))
    assert opened.config == original.config
    for name, shape in checkpoint_tensors(opened.plan).items():
        tensor, blocks = opened.tensor(name, shape), opened.blocks(name)
        if name not in truth:
            assert torch.equal(tensor, original.tensor(name, shape))
            assert blocks is None
            continue
        assert tensor.dtype == torch.float32
        assert np.array_equal(tensor.double().numpy(), truth[name])
        if bits is None:
            assert blocks is None
            continue
        assert blocks is not None
        assert (blocks.bits, blocks.block_size) == (bits, size or shape[1])
        assert np.array_equal(blocks.dequantize().astype(np.float64), truth[name])
        whole = blocks.without_offsets()  # zeros are whole steps
        assert whole is not None
        assert np.array_equal(whole.dequantize().astype(np.float64), truth[name])


@pytest.mark.parametrize("form", ["awq", pytest.param("gptq-act-order", marks=pytest.mark.nightly)])
def test_a_bundle_of_it_computes_what_transformers_computes(plain: Path, tmp_path: Path, form: str) -> None:
    settings, packer, _, _ = FORMS[form]
    packed_folders.write(plain, tmp_path / "model", settings, packer)
    bundle = bundles.export(tmp_path / "model", tmp_path / "bundle")
    assert validate(bundle, open_checkpoint(str(tmp_path / "model")), lambda stage: None).passed


OWN_FILES = {
    "gptq-4": ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "sym": True}),
    "awq": ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
}


@pytest.mark.parametrize("form", OWN_FILES)
def test_settings_may_stand_in_a_file_of_their_own(plain: Path, tmp_path: Path, form: str) -> None:
    settings, packer, _, _ = FORMS[form]
    folder = tmp_path / "model"
    truth = packed_folders.write(plain, folder, settings, packer)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    file, own = OWN_FILES[form]
    (folder / file).write_text(json.dumps(own))
    opened = open_checkpoint(str(folder))
    name = f"{Q}.weight"
    assert np.array_equal(opened.tensor(name, truth[name].shape).double().numpy(), truth[name])
    assert not hasattr(opened.transformers_config(), "quantization_config")


def test_a_bias_that_has_no_place_is_told_unless_it_is_zero(plain: Path, tmp_path: Path) -> None:
    packed_folders.write(plain, tmp_path / "model", gptq(), GPTQ())
    edit(tmp_path / "model", lambda tensors: tensors.update({f"{Q}.bias": torch.zeros(8)}))
    check_checkpoint(open_checkpoint(str(tmp_path / "model")))
    edit(tmp_path / "model", lambda tensors: tensors.update({f"{Q}.bias": torch.ones(8)}))
    with pytest.raises(CheckpointError, match=f"has the tensor '{Q}.bias', which a model"):
        check_checkpoint(open_checkpoint(str(tmp_path / "model")))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({"bits": 4}, r"a quantized checkpoint \(quantization_config.quant_method = None\)"),
    "a list of methods": ({"quant_method": ["awq"]}, "quant_method"),
    "another method": (
        {"quant_method": "bitsandbytes"},
        "'bitsandbytes'.* is not supported; supported methods are awq, gptq, compressed-tensors",
    ),
    "AWQ's gemv": (awq(version="gemv"), "AWQ of version 'gemv' with 4 bits is not supported"),
    "AWQ in 8 bits": (awq(bits=8), "with 8 bits is not supported"),
    "GPTQ in 3 bits": (gptq(3), "GPTQ with 3 bits is not supported; supported are 2, 4, 8"),
    "Marlin": (gptq(checkpoint_format="marlin"), "GPTQ in the format 'marlin' is not supported"),
    "float8": (compressed("float-quantized"), "in the format 'float-quantized' is not supported"),
    "float4": (
        compressed(config_groups={"group_0": {"weights": {"type": "float"}}}),
        "weights of type 'float' are not supported",
    ),
    "sparse": (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights"),
    "rotated": (compressed(transform_config={"config_groups": {"R1": {}}}), "with transforms"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_when_it_is_opened(plain: Path, tmp_path: Path, what: str) -> None:
    settings, says = REFUSED[what]
    packed_folders.write(plain, tmp_path / "model", settings, AWQ())
    with pytest.raises(UnsupportedModelError, match=says):
        open_checkpoint(str(tmp_path / "model"))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


DAMAGE: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "no scales": ("awq", lambda w: w.pop(f"{Q}.scales"), f"no tensor '{Q}.scales'"),
    "half of the words": (
        "awq",
        lambda w: w.update({f"{Q}.qweight": w[f"{Q}.qweight"][:, ::2].contiguous()}),
        "do not match",
    ),
    "scales of another module": (
        "awq",
        lambda w: w.update({f"{Q}.scales": torch.ones(3, 128)}),
        "do not match",
    ),
    "an index too long": (
        "gptq-4",
        lambda w: w.update({f"{Q}.g_idx": torch.zeros(100, dtype=torch.int32)}),
        "g_idx contradicts",
    ),
    "groups that are not there": (
        "gptq-4",
        lambda w: w.update({f"{Q}.g_idx": torch.full((64,), 9, dtype=torch.int32)}),
        "do not match",
    ),
    "a shape of other words": (
        "compressed-4",
        lambda w: w.update({f"{Q}.weight_shape": torch.tensor([128, 640])}),
        "integers of 4 and 8 bits are supported",
    ),
    "another size": (
        "compressed-4",
        lambda w: w.update({f"{Q}.{key}": w[f"model.layers.0.mlp.up_proj.{key}"].clone()
                            for key in ("weight_packed", "weight_shape", "weight_scale")}),
        r"has shape \[160, 64\] unpacked, but config.json implies \[128, 64\]",
    ),
    "too few scales": (
        "compressed-4",
        lambda w: w.update({f"{Q}.weight_scale": w[f"{Q}.weight_scale"][:, :1].contiguous()}),
        r"1 scales for a row of 64 columns, which is not what config.json says \(group_size 32\)",
    ),
    "float8 values": (
        "compressed-int8",
        lambda w: w.update({f"{Q}.weight": torch.ones(128, 64)}),
        "weights of float32 with scales are not supported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(plain: Path, tmp_path: Path, what: str) -> None:
    form, change, says = DAMAGE[what]
    settings, packer, _, _ = FORMS[form]
    packed_folders.write(plain, tmp_path / "model", settings, packer)
    edit(tmp_path / "model", change)
    opened = open_checkpoint(str(tmp_path / "model"))
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says) as caught:
        opened.tensor(f"{Q}.weight", (128, 64))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["awq", "gptq-4", "compressed-4"])
def test_a_matrix_that_is_there_twice_is_refused(plain: Path, tmp_path: Path, form: str) -> None:
    settings, packer, _, _ = FORMS[form]
    packed_folders.write(plain, tmp_path / "model", settings, packer)
    edit(tmp_path / "model", lambda weights: weights.update({f"{Q}.weight": torch.ones(128, 64)}))
    with pytest.raises(CheckpointError, match=f"has '{Q}.weight' and the same matrix packed in '{Q}"):
        open_checkpoint(str(tmp_path / "model"))


@pytest.mark.parametrize("size", [0, -2, "32"])
def test_group_sizes_that_cannot_be_are_refused(plain: Path, tmp_path: Path, size: object) -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": size}}}
    packed_folders.write(plain, tmp_path / "model", compressed(config_groups=groups), Compressed())
    with pytest.raises(
        CheckpointError, match=f"group_size must be a positive integer or -1, but is {size!r}"
    ):
        open_checkpoint(str(tmp_path / "model"))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["awq", "gptq-act-order", "compressed-4"])
def test_scales_that_are_no_numbers_are_named(plain: Path, tmp_path: Path, form: str) -> None:
    settings, packer, _, _ = FORMS[form]
    packed_folders.write(plain, tmp_path / "model", settings, packer)
    scale = f"{Q}.{'weight_scale' if form == 'compressed-4' else 'scales'}"
    edit(tmp_path / "model", lambda weights: weights[scale].view(-1)[:1].fill_(torch.inf))
    opened = open_checkpoint(str(tmp_path / "model"))
    for weights in ("float", "int4", "int4+offset"):
        stored = FORMATS[weights]("float32", 32, False)
        with (
            WeightFile(tmp_path, "weights.bin") as file,
            pytest.raises(CheckpointError, match="holds NaN or"),
        ):
            stored.store(opened, f"{Q}.weight", (128, 64), file)
