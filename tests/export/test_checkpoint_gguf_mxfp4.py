"""Tensors of type MXFP4 in GGUF files hold what transformers unpacks of the same blocks."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from tests import family_models
from tests.reference import gguf_files
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.formats.blocks import Blocks

EXPERT = "model.layers.1.mlp.experts.5.up_proj.weight"


def unpacked(blocks: NDArray[np.uint8]) -> torch.Tensor:
    """Rows [N, K / 32 · 17] of a file. Its bytes hold elements i and i + 16; those of transformers, neighbours."""
    each = blocks.reshape(len(blocks), -1, 17)
    codes = np.concatenate((each[..., 1:] & 15, each[..., 1:] >> 4), axis=-1)  # [N, K / 32, 32]
    pairs = torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4)
    scales = torch.from_numpy(np.ascontiguousarray(each[..., 0]))
    return convert_moe_packed_tensors(pairs[None], scales[None], dtype=torch.float32)[0].T


def test_four_bits_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "gpt_oss")
    draw = np.random.default_rng(1)
    blocks = draw.integers(0, 256, (8, 96, 2, 17)).astype(np.uint8)
    blocks[..., 0] = draw.integers(115, 130, blocks.shape[:-1])
    exact = gguf.dequantize(blocks.reshape(8, 96, -1), Kind.MXFP4)
    path = gguf_files.write(
        folder, tmp_path / "model.gguf", Kind.MXFP4, tensors={"blk.1.ffn_up_exps.weight": exact}
    )
    opened = open_checkpoint(str(path))
    expected = unpacked(blocks.reshape(8, 96, -1)[5])
    torch.testing.assert_close(opened.tensor(EXPERT, (96, 64)), expected, rtol=0, atol=0)
    integers = opened.blocks(EXPERT)
    assert integers is not None
    np.testing.assert_array_equal(integers.dequantize(), expected.numpy())
    assert not opened.unused(checkpoint_tensors(opened.plan))


def test_integer_weights_keep_four_bits_as_they_are(tmp_path: Path) -> None:
    folder = family_models.save(tmp_path / "checkpoint", "gpt_oss")
    opened = open_checkpoint(str(gguf_files.write(folder, tmp_path / "model.gguf", Kind.MXFP4)))
    blocks = Blocks(8, 32, "float32")
    for name in (EXPERT, EXPERT.replace("up", "down"), "model.layers.0.self_attn.q_proj.weight"):
        shape = checkpoint_tensors(opened.plan)[name]
        assert torch.equal(blocks.rounded(opened, name, shape), opened.tensor(name, shape)), name
