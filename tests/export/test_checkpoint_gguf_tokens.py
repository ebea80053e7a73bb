"""Token ids of GGUF files, against llama.cpp's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.reference import gguf_files
from tests.reference.golden import GOLDEN

from h2o_export.checkpoints.gguf.header import read_header
from h2o_export.checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from h2o_export.checkpoints.gguf.tokenizer import tokenizer_files
from h2o_runtime.errors import UnsupportedModelError

STORED = json.loads((GOLDEN / "gguf_pre" / "llama_cpp.json").read_text())
TEXTS, MERGES = STORED["texts"], STORED["merges"]
IDS = {name: group["of_texts"] for group in STORED["ids"] for name in group["names"]}
TOKENS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]


def vocabulary(pre: str | None) -> dict[str, Any]:
    return {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*TOKENS, "<|end|>"],
        "tokenizer.ggml.token_type": [1] * len(TOKENS) + [3],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": len(TOKENS),
        "tokenizer.ggml.eos_token_id": len(TOKENS),
        "tokenizer.ggml.add_bos_token": None,
    }


def written(checkpoint: Path, path: Path, pre: str | None) -> Path:
    words = np.zeros((len(TOKENS) + 1, 64), np.float32)
    metadata = {**vocabulary(pre), "llama.vocab_size": len(words)}
    tensors = {"token_embd.weight": words, "output.weight": words}
    return gguf_files.write(checkpoint, path, metadata=metadata, tensors=tensors)


def read(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    files = tokenizer_files(read_header(path))
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"])


def test_each_known_name_has_ids_of_llama_cpp() -> None:
    assert PRE_TOKENIZERS.keys() == IDS.keys()


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_texts_are_split_as_by_llama_cpp(name: str) -> None:
    known = PRE_TOKENIZERS[name]
    model = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(TOKENS)},
        "merges": MERGES,
        "ignore_merges": known.whole_words,
    }
    ours = tokenizers.Tokenizer.from_str(
        json.dumps({"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": known.to_json()})
    )
    assert [ours.encode(text).ids for text in TEXTS] == IDS[name]
    assert known.adds_bos == (name in STORED["begin_with_bos"])


@pytest.mark.parametrize("name", ["deepseek-v3", "glm4", "tekken"])
def test_a_file_gives_the_ids_of_llama_cpp(small_checkpoint: Path, tmp_path: Path, name: str) -> None:
    ours, settings = read(written(small_checkpoint, tmp_path / "m.gguf", name))
    assert [ours.encode(text, add_special_tokens=False).ids for text in TEXTS] == IDS[name]
    assert settings["add_bos_token"] == (name in STORED["begin_with_bos"])


def test_a_file_without_a_name_is_split_by_default_and_a_warning_says_so(
    small_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, _ = read(written(small_checkpoint, tmp_path / "m.gguf", None))
    assert [ours.encode(text, add_special_tokens=False).ids for text in TEXTS] == IDS["default"]
    assert "does not name its pre-tokenizer" in caplog.text


@pytest.mark.parametrize("name", ["banana", "gemma4", "roberta-bpe", 7])
def test_another_name_is_refused(small_checkpoint: Path, tmp_path: Path, name: Any) -> None:
    path = written(small_checkpoint, tmp_path / "m.gguf", name)
    with pytest.raises(UnsupportedModelError, match=f"the pre-tokenizer {name!r} is not supported"):
        read(path)
