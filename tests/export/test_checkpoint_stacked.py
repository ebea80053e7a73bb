"""Folders with the matrices of all experts in one tensor: floats, and MXFP4 as transformers unpacks it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import family_models
from tests.drafting import save_drafting
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime.errors import CheckpointError

EXPERTS = "model.layers.{}.mlp.experts.{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_models.save(tmp_path_factory.mktemp("stacked"), "gpt_oss")


def pack(folder: Path, to: Path) -> dict[str, torch.Tensor]:
    """A copy whose experts are random MXFP4. Returns the matrices as transformers unpacks them, [E, in, out]."""
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    tensors, unpacked = load_file(folder / "model.safetensors"), {}
    draw = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, rows = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, inner // 32, 16), generator=draw, dtype=torch.uint8)
        scales = torch.randint(115, 130, blocks.shape[:3], generator=draw, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        unpacked[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, to / "model.safetensors")
    config = json.loads((to / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (to / "config.json").write_text(json.dumps(config))
    return unpacked


def test_four_bits_are_what_transformers_makes_of_them(folder: Path, tmp_path: Path) -> None:
    unpacked = pack(folder, tmp_path)
    opened = open_checkpoint(str(tmp_path))
    for layer, expert in ((0, 0), (1, 7)):
        both = unpacked[EXPERTS.format(layer, "gate_up_proj")][expert]
        down = unpacked[EXPERTS.format(layer, "down_proj")][expert]
        expected = {"gate": both[:, ::2].T, "up": both[:, 1::2].T, "down": down.T}
        for name, matrix in expected.items():
            ours = opened.tensor(EXPERTS.format(layer, f"{expert}.{name}_proj.weight"), tuple(matrix.shape))
            torch.testing.assert_close(ours, matrix, rtol=0, atol=0)
    assert not opened.unused(checkpoint_tensors(opened.plan))


def test_gates_above_ups_are_taken_apart(tmp_path: Path) -> None:
    """Published files of Qwen3.5 stack what transformers saves matrix by matrix, not always in the draft layer."""
    apart = open_checkpoint(str(save_drafting(tmp_path / "apart", family="qwen3_5_moe")))
    shutil.copytree(tmp_path / "apart", tmp_path / "together")
    tensors = load_file(tmp_path / "apart/model.safetensors")
    for layer in range(4):
        each = {
            one: torch.stack(
                [tensors.pop(f"{EXPERTS.format(layer, expert)}.{one}_proj.weight") for expert in range(8)]
            )
            for one in ("gate", "up", "down")
        }
        tensors[EXPERTS.format(layer, "gate_up_proj")] = torch.cat((each["gate"], each["up"]), dim=1)
        tensors[EXPERTS.format(layer, "down_proj")] = each["down"]
    save_file(tensors, tmp_path / "together/model.safetensors")
    together = open_checkpoint(str(tmp_path / "together"))
    for name, shape in checkpoint_tensors(apart.plan).items():
        assert torch.equal(together.tensor(name, shape), apart.tensor(name, shape)), name
    assert not together.unused(checkpoint_tensors(apart.plan))


def test_floats_are_taken_apart(folder: Path) -> None:
    tensors, opened = load_file(folder / "model.safetensors"), open_checkpoint(str(folder))
    for name, at in (("gate", 0), ("up", 1)):
        matrix = tensors[EXPERTS.format(1, "gate_up_proj")][3, :, at::2].T
        ours = opened.tensor(EXPERTS.format(1, f"3.{name}_proj.weight"), tuple(matrix.shape))
        torch.testing.assert_close(ours, matrix, rtol=0, atol=0)
        bias = tensors[EXPERTS.format(1, "gate_up_proj_bias")][3, at::2]
        ours = opened.tensor(EXPERTS.format(1, f"3.{name}_proj.bias"), tuple(bias.shape))
        torch.testing.assert_close(ours, bias, rtol=0, atol=0)
    assert not opened.unused(checkpoint_tensors(opened.plan))
    with pytest.raises(CheckpointError, match="expert 3 has gate_proj"):
        opened.tensor(EXPERTS.format(1, "3.gate_proj.weight"), (1, 2))
    with pytest.raises(CheckpointError, match="cannot read tensor"):
        opened.tensor(EXPERTS.format(1, "99.gate_proj.weight"), (96, 64))
