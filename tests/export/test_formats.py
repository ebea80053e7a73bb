"""Every weight format of every type of a GGUF file, against plain rounding in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from tests.reference import checkpoints, gguf_files

from h2o_export.checkpoints import open_checkpoint
from h2o_export.formats import FORMATS, DType

ROWS, COLUMNS = 64, 256  # a super-block of K-types in each row
NAME, OWN = "model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight"
OFTEN = (Kind.F32, Kind.Q8_0, Kind.Q5_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K)
SELDOM = {Kind.F16, Kind.BF16, Kind.Q5_1, *gguf_files.RANDOM} - {Kind.Q4_K}
KINDS = (*OFTEN, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in sorted(SELDOM)))
# Types whose integers a format keeps: only scales and offsets are rounded, to the dtype of the graph.
KEPT = {
    "int8": {Kind.Q8_0, Kind.Q5_0, Kind.Q4_0},
    "int4": {Kind.Q4_0},
    "int4+offset": {Kind.Q4_0, Kind.Q4_1, Kind.Q4_K},
}
# Of a dtype: the relative error of a stored number, and the smallest one above zero.
DTYPES: tuple[DType, ...] = ("float32", "float16")
PRECISION = {"float32": (2.0**-23, 0.0), "float16": (2.0**-10, 2.0**-24)}


def special(block: int) -> NDArray[np.float32]:
    """Blocks, each many times: what real matrices hold, and what makes a scale or an offset zero or tiny."""
    drawn = np.random.default_rng(0)
    lopsided = drawn.integers(-8, 8, block).astype(np.float64)
    lopsided[:2] = -8, 7  # 7 · least = -8 · most: the middle between both is zero
    blocks = [
        drawn.normal(size=block) * 0.02,
        drawn.normal(size=block) * 0.02 + 1,
        np.zeros(block),
        np.full(block, 0.015625),
        np.full(block, -0.3),
        lopsided / 64,
        -lopsided / 64,
        lopsided * 2.0**-20,
        drawn.normal(size=block) * 1e-6,  # subnormal scales in float16
        drawn.normal(size=block) * 1e-42,  # subnormal in float32
        np.eye(block)[3] * 0.5,
        -np.eye(block)[3] * 2.0**-30,
        drawn.uniform(1, 1 + 1e-5, block),
    ]
    order = [index % len(blocks) for index in range(ROWS * COLUMNS // block)]
    rows = np.concatenate([blocks[index] for index in order]).reshape(ROWS, COLUMNS)
    rows[-4:] = 0
    return rows.astype(np.float32)


def plain(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Blocks [..., block] rounded to nearest with the scales that docs/weights.md states."""
    limit, low = (127, -128) if name == "int8" else (7, -8)
    least, most = values.min(-1, keepdims=True), values.max(-1, keepdims=True)
    largest = np.where(-least > most, least, most)
    offset = np.zeros_like(least)
    scale = np.abs(largest) / 127 if name == "int8" else largest / -8
    if name == "int4+offset":
        scale = (most - least) / 15
        offset = least + 8 * scale
    scale = np.where(scale == 0, 1, scale)
    return np.asarray(np.clip(np.rint((values - offset) / scale), low, limit) * scale + offset)


def assert_as_good(
    found: NDArray[Any], truth: NDArray[Any], kept: bool, block: int, name: str, dtype: str
) -> None:
    """No block's error is larger than plain rounding's, but for what numbers of a dtype cost."""
    relative, least = PRECISION[dtype]
    blocks = truth.astype(np.float64).reshape(-1, block)
    size = np.abs(blocks).max(-1)
    error = np.abs(found.astype(np.float64).reshape(-1, block) - blocks).max(-1)
    nearest = 0 if kept else np.abs(plain(blocks, name) - blocks).max(-1)
    numbers = 16 if name == "int4+offset" else 2  # an offset may be many times the block's values
    integers = 128 if name == "int8" else 16
    allowed = nearest + numbers * relative * size + integers * least + 2.0**-140
    worst = int((error - allowed).argmax())
    assert error[worst] <= allowed[worst], (name, dtype, block, blocks[worst])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {"hidden": COLUMNS, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "layers": 1}
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", "llama", **shape)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_every_format_of_every_type_is_plain_rounding(folder: Path, tmp_path: Path, kind: Kind) -> None:
    rows = open_checkpoint(str(folder)).config.intermediate_size
    matrix = np.resize(special(32), (rows, COLUMNS))
    path = gguf_files.write(folder, tmp_path / "model.gguf", kind, tensors={OWN: matrix})
    opened = open_checkpoint(str(path))
    truth = opened.tensor(NAME, matrix.shape).numpy()
    assert not truth[(matrix == 0).all(axis=1)].any()
    for name, kept in KEPT.items():
        for dtype in DTYPES:
            for block in (16, 32, 64):
                format = FORMATS[name](dtype, block, False)
                found = format.rounded(opened, NAME, matrix.shape).numpy()
                assert_as_good(found, truth, kind in kept and block <= 32, block, name, dtype)
