"""GGUF files: against transformers' own reading of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests import bundles
from tests.reference import checkpoints, gguf_files
from transformers import AutoConfig, AutoModelForCausalLM

from h2o_export.checkpoints import Checkpoint, open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.exporter import ExportOptions
from h2o_export.tensors import QuantizedTensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.text import ChatTemplate, Tokenizer

EXAMPLE = checkpoints.EXAMPLE
# Heads of hidden / query_heads elements: transformers reads no other size for Qwen2. 256: K-types have such blocks.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "hidden": 256, "query_heads": 4, "kv_heads": 2, "head_dim": 64},
    "mistral": {"family": "mistral", "hidden": 128, "query_heads": 4, "kv_heads": 1, "head_dim": 32},
    "qwen2": {
        "family": "qwen2",
        "hidden": 256,
        "query_heads": 8,
        "kv_heads": 2,
        "head_dim": 32,
        "tied": True,
    },
    "qwen3": {"family": "qwen3", "hidden": 64, "query_heads": 4, "kv_heads": 2, "head_dim": 128},
}
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: checkpoints.make_checkpoint(root / name, **shape) for name, shape in SHAPES.items()}


def transformers_model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def assert_equal_tensors(opened: Checkpoint, model: Any) -> None:
    expected = model.state_dict()
    tensors = checkpoint_tensors(opened.plan)
    assert set(tensors) == set(expected) - ({"lm_head.weight"} if opened.config.tied else set())
    for name, shape in tensors.items():
        torch.testing.assert_close(opened.tensor(name, shape), expected[name], rtol=0, atol=0)


OFTEN = (Kind.BF16, Kind.Q4_K)
PLAIN = (Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0)
SELDOM = (*PLAIN, *(kind for kind in gguf_files.RANDOM if kind not in OFTEN))
KINDS = [
    *(pytest.param("llama", kind, id=f"llama-{kind.name}") for kind in OFTEN),
    *(pytest.param("llama", kind, id=f"llama-{kind.name}", marks=pytest.mark.nightly) for kind in SELDOM),
    pytest.param("qwen2", Kind.Q8_0, id="qwen2-Q8_0"),
    pytest.param("qwen3", Kind.Q4_0, id="qwen3-Q4_0", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_every_tensor_equals_transformers(
    folders: dict[str, Path], tmp_path: Path, family: str, kind: Kind
) -> None:
    path = gguf_files.write(folders[family], tmp_path / "model.gguf", kind)
    assert_equal_tensors(open_checkpoint(str(path)), transformers_model(path))


def test_the_configuration_is_the_one_that_transformers_reads(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    for family in ("mistral", "qwen2"):
        folder = folders[family]
        path = gguf_files.write(folder, tmp_path / f"{family}.gguf")
        own = open_checkpoint(str(path))
        theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name).to_dict()
        ours = own.transformers_config().to_dict()
        for key in (
            *("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"),
            *("num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings"),
            *("max_position_embeddings", "hidden_act"),
        ):
            assert ours[key] == theirs[key], key
        original = open_checkpoint(str(folder)).config
        eps = np.float32(original.rms_norm_eps).item()
        family = "llama" if family == "mistral" else family  # as llama.cpp calls it, and computes it
        assert own.config == dataclasses.replace(original, family=family, rms_norm_eps=eps)


def test_biases_of_llama_are_put_in_order_too(folders: dict[str, Path], tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    biases = {
        f"blk.{layer}.attn_{name}.bias": drawn.normal(size=size).astype(np.float32)
        for layer in range(2)
        for name, size in (("q", 256), ("k", 128), ("v", 128), ("output", 256))
    }
    path = gguf_files.write(folders["llama"], tmp_path / "model.gguf", tensors=dict(biases))
    opened = open_checkpoint(str(path))
    assert opened.config.qkv_bias
    assert opened.config.o_bias
    k = opened.tensor("model.layers.1.self_attn.k_proj.bias", (128,)).numpy().reshape(2, 2, 32)
    assert np.array_equal(k.swapaxes(1, 2).ravel(), biases["blk.1.attn_k.bias"])
    v = opened.tensor("model.layers.1.self_attn.v_proj.bias", (128,)).numpy()
    assert np.array_equal(v, biases["blk.1.attn_v.bias"])


@pytest.mark.parametrize(
    ("family", "kind", "bits"),
    [
        ("llama", Kind.Q8_0, 8),
        ("llama", Kind.Q5_0, 8),
        ("qwen3", Kind.Q4_0, 4),
        ("llama", Kind.Q4_1, 4),
        ("llama", Kind.Q4_K, 4),
        ("qwen3", Kind.Q4_K, 4),
    ],
    ids=lambda x: str(x),
)
def test_blocks_are_the_very_integers_of_the_file(
    folders: dict[str, Path], tmp_path: Path, family: str, kind: Kind, bits: int
) -> None:
    opened = open_checkpoint(str(gguf_files.write(folders[family], tmp_path / "model.gguf", kind)))
    for name, shape in checkpoint_tensors(opened.plan).items():
        blocks = opened.blocks(name)
        if len(shape) == 1 or shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            assert blocks is None
            continue
        assert blocks is not None
        assert (blocks.bits, blocks.block_size, blocks.q.shape) == (bits, 32, shape)
        assert (blocks.offsets is not None) == (kind in (Kind.Q4_1, Kind.Q4_K))
        np.testing.assert_allclose(
            blocks.dequantize(), opened.tensor(name, shape).numpy(), rtol=0, atol=allowed(blocks)
        )
        half = 1 << (bits - 1)
        assert -half <= blocks.q.min()
        assert blocks.q.max() < half


def allowed(blocks: QuantizedTensor) -> float:
    """With an offset the sum is rounded once more, at another place than the library does it."""
    return 0.0 if blocks.offsets is None else float(np.abs(blocks.offsets).max()) * 2**-22


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1])
def test_a_text_for_integers_that_stay_as_they_are_is_refused(
    folders: dict[str, Path], tmp_path: Path, kind: Kind
) -> None:
    path = gguf_files.write(folders["llama"], tmp_path / "model.gguf", kind)
    text = tmp_path / "text.txt"
    text.write_text("Anything.")
    with pytest.raises(ConfigError, match="nothing to calibrate"):
        bundles.export(path, tmp_path / "bundle", weights="int4", calibrate=text)
    assert not (tmp_path / "bundle").exists()


def test_int4_keeps_the_offsets_of_the_file(folders: dict[str, Path], tmp_path: Path) -> None:
    path = gguf_files.write(folders["llama"], tmp_path / "model.gguf", Kind.Q4_K)
    opened = open_checkpoint(str(path))
    formats, shape = (
        ExportOptions("", tmp_path, weights="int4").formats(opened),
        checkpoint_tensors(opened.plan)[Q],
    )
    assert formats.projections.name == "int4+offset"
    kept, truth = formats.projections.rounded(opened, Q, shape), opened.tensor(Q, shape)
    torch.testing.assert_close(kept, truth, rtol=0, atol=float(truth.abs().max()) * 2**-20)


def test_offsets_of_blocks_that_cannot_be_kept_are_not(folders: dict[str, Path], tmp_path: Path) -> None:
    opened = open_checkpoint(str(gguf_files.write(folders["llama"], tmp_path / "model.gguf", Kind.Q4_1)))
    for size, kept in ((16, "int4+offset"), (32, "int4+offset"), (64, "int4")):
        formats = ExportOptions("", tmp_path, weights="int4", block_size=size).formats(opened)
        assert (formats.projections.name, formats.named) == (kept, {})


# --- RoPE -------------------------------------------------------------------------------------------------


def test_factors_of_the_frequencies_are_llama_3s_scaling(tmp_path: Path) -> None:
    folder = checkpoints.make_named(tmp_path / "model", "llama-g2-d64-llama3")
    rope = open_checkpoint(str(folder)).config.rope
    scaled = rope.inverse_frequencies(64)
    plain = dataclasses.replace(rope, kind="default").inverse_frequencies(64)
    path = gguf_files.write(
        folder, tmp_path / "model.gguf", tensors={"rope_freqs.weight": (plain / scaled).astype(np.float32)}
    )
    opened = open_checkpoint(str(path))
    np.testing.assert_allclose(opened.config.rope.inverse_frequencies(64), scaled, rtol=3e-7)


@pytest.mark.parametrize(
    ("metadata", "factor"),
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scale_linear": 2.0}, 2.0),  # as older files say it
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
    ],
)
def test_linear_scaling(
    small_checkpoint: Path, tmp_path: Path, metadata: dict[str, Any], factor: float | None
) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf", metadata=metadata)
    rope = open_checkpoint(str(path)).config.rope
    assert (rope.kind, rope.factor) == (("linear", factor) if factor else ("default", 1.0))


# --- Tokenizer --------------------------------------------------------------------------------------------


def written(path: Path, folder: Path) -> Path:
    folder.mkdir()
    open_checkpoint(str(path)).write_tokenizer(folder)
    return folder


def test_tokenizer_and_chat_template_are_the_checkpoints(small_checkpoint: Path, tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 4, "tokenizer.chat_template.tool_use": "tools"}
    folder = written(
        gguf_files.write(small_checkpoint, tmp_path / "m.gguf", metadata=metadata), tmp_path / "tokenizer"
    )
    ours, expected = Tokenizer.load(folder), Tokenizer.load(EXAMPLE)
    text = (EXAMPLE / "heldout.txt").read_text()[:20_000] + "<|eot_id|> naïve 漢字 🙂"
    assert ours.encode(text)[0] == ours.bos_id == 0
    assert ours.encode(text)[1:] == expected.encode(text, add_special_tokens=False)
    assert ours.decode(ours.encode(text)) == expected.decode(expected.encode(text))
    assert ours.eos_ids == {1, 4}
    assert ours.special_ids >= {0, 1, 4}
    messages = [{"role": "user", "content": "hello"}]
    assert ChatTemplate.load(folder).render(messages) == ChatTemplate.load(EXAMPLE).render(messages)
    assert ChatTemplate.load(folder).texts["tool_use"] == "tools"


def test_files_beside_it_are_no_part_of_it(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "m.gguf")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        (tmp_path / name).write_text('{"chat_template": "another", "add_bos_token": false}')
    folder = written(path, tmp_path / "tokenizer")
    assert Tokenizer.load(folder).encode("a")[0] == 0
    assert "another" not in ChatTemplate.load(folder).texts["default"]


def test_digits_of_smollm_stand_alone(small_checkpoint: Path, tmp_path: Path) -> None:
    path = gguf_files.write(small_checkpoint, tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": "smollm"})
    tokenizer = Tokenizer.load(written(path, tmp_path / "tokenizer"))
    shown = [tokenizer.decode([token]) for token in tokenizer.encode("in  2024", add_special_tokens=False)]
    assert shown == ["in", "  ", "2", "0", "2", "4"]


def test_the_end_of_a_turn_of_gemma_ends_answers(small_checkpoint: Path, tmp_path: Path) -> None:
    tokens = list(gguf_files.tokenizer_metadata(small_checkpoint)["tokenizer.ggml.tokens"])
    tokens[-1] = "<end_of_turn>"
    merges = gguf_files.tokenizer_metadata(small_checkpoint)["tokenizer.ggml.merges"][:10]
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}
    path = gguf_files.write(small_checkpoint, tmp_path / "model.gguf", metadata=changed)
    open_checkpoint(str(path)).write_tokenizer(tmp_path)
    assert Tokenizer.load(tmp_path).eos_ids == {1, len(tokens) - 1}


def test_sentencepiece(small_checkpoint: Path, tmp_path: Path) -> None:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "h", "i", "▁h", "▁hi", "t", "!"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words]
    path = gguf_files.write(
        small_checkpoint,
        tmp_path / "m.gguf",
        metadata={
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(index) for index in range(len(words))],
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.add_bos_token": None,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    )
    tokenizer = Tokenizer.load(written(path, tmp_path / "tokenizer"))
    ids = tokenizer.encode("hi hit!é")
    assert [tokens[token] for token in ids] == ["<s>", "▁hi", "▁hi", "t", "!", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "hi hit!é"
