"""GGUF files that are damaged, contradict themselves or come in parts: one sentence each."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.reference import gguf_files

from h2o_export.checkpoints import open_checkpoint
from h2o_export.checkpoints.gguf.config import huggingface_config, model_config
from h2o_export.checkpoints.gguf.header import Header, Metadata, TensorEntry, read_header
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.formats import FORMATS
from h2o_export.validation.soundness import check_checkpoint
from h2o_export.weights import WeightFile
from h2o_runtime.errors import CheckpointError, H2OError, UnsupportedModelError


def refusal(open_it: Callable[[], object]) -> str | None:
    """The sentence with which it is refused, if it is; any other error is a defect."""
    try:
        open_it()
    except H2OError as error:
        return str(error)
    return None


# --- What is refused --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "experts": ({"metadata": {"llama.expert_count": 8}}, r"mixture of experts \(llama.expert_count = 8\)"),
    "a window": ({"metadata": {"llama.attention.sliding_window": 8}}, "sliding-window attention"),
    "yarn": (
        {"metadata": {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}},
        "scaled by YaRN, and its metadata lack rope.scaling.original_context_length",
    ),
    "longrope without its short list": (
        {"tensors": {"rope_factors_long.weight": np.ones(16, np.float32)}},
        "its metadata: short_factor must be a list of 16 numbers",
    ),
    "factors and a scale": (
        {
            "tensors": {"rope_freqs.weight": np.full(16, 2, np.float32)},
            "metadata": {"llama.rope.scale_linear": 2.0},
        },
        "rope_freqs.weight and RoPE scaling 'linear' together",
    ),
    "a part of a head rotated": (
        {"metadata": {"llama.rope.dimension_count": 16}},
        r"partial rotary embedding \(16 of 32 elements\)",
    ),
    "values of another size": (
        {"metadata": {"llama.attention.value_length": 64}},
        "keys of 32 elements and values of 64",
    ),
    "heads that differ by layer": (
        {"metadata": {"llama.attention.head_count_kv": [2, 1]}},
        "its metadata: num_key_value_heads must be a positive integer",
    ),
    "an odd head": (
        {"metadata": {f"llama.{key}": 33 for key in ("attention.key_length", "attention.value_length")}
         | {"llama.rope.dimension_count": 33}},
        "head size 33 is not supported",
    ),
    "another architecture": (
        {"metadata": {"general.architecture": "gpt2"}},
        "architecture 'gpt2' is not supported; supported are llama, qwen2, qwen3",
    ),
    "an adapter": ({"metadata": {"general.type": "adapter"}}, "is the 'adapter' of a model, not a model"),
    "a base of 0": ({"metadata": {"llama.rope.freq_base": 0.0}}, "rope_theta must be a positive number"),
    "an infinite base": (
        {"metadata": {"llama.rope.freq_base": float("inf")}}, "rope_theta must be a positive number",
    ),
    "a missing key": ({"metadata": {"llama.block_count": None}}, "its metadata lack llama.block_count"),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, "no matrix 'token_embd.weight' in it"),
    "bad factors": (
        {"tensors": {"rope_freqs.weight": np.zeros(16, np.float32)}},
        "rope_freqs.weight must hold positive numbers",
    ),
    "factors of other heads": (
        {"tensors": {"rope_freqs.weight": np.ones(8, np.float32)}},
        r"rope_freqs.weight has shape \[8\], but heads of 32 elements have 16",
    ),
    "no tokenizer": ({"tokenizer": False}, "has no tokenizer"),
    "another tokenizer": ({"metadata": {"tokenizer.ggml.model": "bert"}}, "of kind 'bert' is not supported"),
    "a broken tokenizer": (
        {"metadata": {"tokenizer.ggml.merges": ["no such", "tokens are"]}},
        "transformers cannot build its tokenizer",
    ),
    "integers": (
        {"tensors": {"blk.0.attn_norm.weight": np.ones(64, np.int32)}},
        "'blk.0.attn_norm.weight' has the type I32, which the package gguf cannot dequantize",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_when_it_is_opened(small_checkpoint: Path, tmp_path: Path, what: str) -> None:
    changes, says = REFUSED[what]
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf", **changes)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says) as caught:
        open_checkpoint(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_contradictions_are_told_with_the_name_of_the_file(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(
        small_checkpoint, tmp_path / "model.gguf", tensors={"blk.7.attn_norm.weight": np.ones(64, np.float32)}
    )
    says = "'blk.7.attn_norm.weight', and model.gguf says 1 layers; was it converted correctly"
    with pytest.raises(CheckpointError, match=says):
        check_checkpoint(open_checkpoint(str(path)))


def test_a_folder_of_gguf_files_asks_for_the_file(small_checkpoint: Path, tmp_path: Path) -> None:
    gguf_files.write(small_checkpoint, tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="give one of its GGUF files itself"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "at byte 4 it promises more than the file has"),
        (b"GGML" + bytes(64), "does not begin with the letters GGUF"),
        (b"GGUF\x01\0\0\0" + bytes(64), "GGUF version 1 is not supported"),
        (b"GGUF\0\0\0\x03" + bytes(64), "big-endian"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "promises more than the file has"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=says):
        open_checkpoint(str(tmp_path / "model.gguf"))


def test_an_unknown_type_is_named(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf")
    content = bytearray(path.read_bytes())
    name = b"blk.0.attn_norm.weight"
    content[content.index(name) + len(name) + 12] = 99  # behind the count of dimensions and one dimension
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=r"'blk.0.attn_norm.weight' has the type 99"):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (0, 0, "the tensor 'output_norm.weight' has a dimension of 0"),
        (12, 0, "the tensors 'output.weight' and 'output_norm.weight' overlap"),
    ],
)
def test_entries_that_cannot_be_are_named(
    small_checkpoint: Path, tmp_path: Path, field: int, value: int, says: str
) -> None:
    """A vector's entry: a word with its number of dimensions, its size, its type, its offset."""
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf")
    content, name = bytearray(path.read_bytes()), b"output_norm.weight"
    at = content.index(name) + len(name) + 4 + field
    content[at : at + 8] = value.to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"not a whole GGUF file: {says}"):
        open_checkpoint(str(path))


@pytest.mark.parametrize("weights", ["float", "int4"])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K])
@pytest.mark.filterwarnings("error")
def test_scales_that_are_no_numbers_are_named(
    small_checkpoint: Path, tmp_path: Path, kind: Kind, weights: str
) -> None:
    """In the first block of a matrix; its integers would be stored as they are, and the scale with them."""
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf", kind)
    stored = read_header(path).tensors["blk.0.ffn_up.weight"]
    if stored.kind != kind:
        pytest.skip("rows too short")
    content = bytearray(path.read_bytes())
    content[stored.offset : stored.offset + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    opened = open_checkpoint(str(path))
    form = FORMATS[weights if weights == "float" else "int8" if kind == Kind.Q8_0 else "int4+offset"](
        "float32", 32, False
    )
    with (
        WeightFile(tmp_path, "weights.bin") as file,
        pytest.raises(CheckpointError, match="holds NaN or infinity"),
    ):
        form.store(opened, "model.layers.0.mlp.up_proj.weight", stored.shape, file)


def test_a_file_cut_anywhere_is_one_sentence(small_checkpoint: Path, tmp_path: Path) -> None:
    content = gguf_files.write(small_checkpoint, tmp_path / "whole.gguf", Kind.Q8_0).read_bytes()
    path = tmp_path / "model.gguf"
    drawn = random.Random(0)
    for length in [*range(0, 400, 19), *(drawn.randrange(len(content)) for _ in range(25)), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises((CheckpointError, UnsupportedModelError), match=r"model\.gguf: ") as caught:
            open_checkpoint(str(path))
        assert "\n" not in str(caught.value)


def test_a_file_cut_while_it_is_read_is_named(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf")
    opened = open_checkpoint(str(path))
    path.write_bytes(path.read_bytes()[: read_header(path).tensors["output_norm.weight"].offset + 1])
    with pytest.raises(CheckpointError, match=r"cannot read tensor 'output_norm.weight'"):
        opened.tensor("model.norm.weight", (64,))


@pytest.mark.timeout(600)
def test_a_damaged_header_is_read_or_refused(small_checkpoint: Path, tmp_path: Path) -> None:
    """Random bytes anywhere before the data; of the tokenizer only few, as transformers takes its time."""
    whole = gguf_files.write(small_checkpoint, tmp_path / "whole.gguf", tokenizer=False)
    content = whole.read_bytes()
    end = min(tensor.offset for tensor in read_header(whole).tensors.values())
    path = tmp_path / "model.gguf"
    drawn = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(drawn.choice((1, 1, 2, 8))):
            damaged[drawn.randrange(end)] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)))
        path.write_bytes(damaged)
        sentence = refusal(lambda: model_config(header := read_header(path), huggingface_config(header)))
        refused += sentence is not None
        assert "\n" not in (sentence or "")
    assert refused > 100


# --- Split files ------------------------------------------------------------------------------------------


@pytest.fixture
def parts(small_checkpoint: Path, tmp_path: Path) -> list[Path]:
    gguf_files.write(small_checkpoint, tmp_path / "model.gguf", Kind.Q8_0, parts=3)
    return sorted(tmp_path.glob("model-*.gguf"))


def test_parts_are_one_checkpoint_whichever_is_named(
    small_checkpoint: Path, tmp_path: Path, parts: list[Path]
) -> None:
    assert [part.name for part in parts] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    whole = open_checkpoint(str(gguf_files.write(small_checkpoint, tmp_path / "whole.gguf", Kind.Q8_0)))
    opened = [open_checkpoint(str(part)) for part in parts]
    for name, shape in checkpoint_tensors(whole.plan).items():
        for checkpoint in opened:
            assert checkpoint.config == whole.config
            assert torch.equal(checkpoint.tensor(name, shape), whole.tensor(name, shape))
    assert len({checkpoint.sha256() for checkpoint in opened}) == 1
    assert opened[0].sha256() != whole.sha256()


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"file model-00002-of-00003.gguf is missing \(1 in all\)"):
        open_checkpoint(str(parts[0]))


def test_a_part_under_another_name_is_named(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(CheckpointError, match="is one of 3 files of a model, but has no name like"):
        open_checkpoint(str(other))


def test_swapped_parts_are_named(parts: list[Path]) -> None:
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(content)
    with pytest.raises(CheckpointError, match="is not file 2 of 3, as its name says"):
        open_checkpoint(str(parts[0]))


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=f"{parts[2].name}: ends before its tensor"):
        open_checkpoint(str(parts[0]))


@pytest.mark.parametrize("found", ["three", 2.5, -1, True, [3]])
def test_a_number_of_the_metadata_is_one(found: object, tmp_path: Path) -> None:
    metadata = Metadata(Header(tmp_path / "x.gguf", {"qwen35.block_count": found}, {}), "qwen35")
    with pytest.raises(CheckpointError, match=r"x.gguf: qwen35.block_count must be a whole number"):
        metadata.number("block_count")
    assert metadata.number("nextn_predict_layers") == 0


def test_a_tensor_without_rows_has_no_parts(tmp_path: Path) -> None:
    entry = TensorEntry(tmp_path / "x.gguf", "blk.0.t", Kind.F32, (), 0, 4)
    with pytest.raises(CheckpointError, match=r"'blk.0.t' has the shape \[\]"):
        entry.rows(0, 2)
