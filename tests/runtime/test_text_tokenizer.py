"""The tokenizer: equal to transformers', one BOS, all ways to end an answer, errors that name the file."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_runtime.errors import BundleError, InputError, UnknownTokenError
from h2o_runtime.text import Tokenizer, decode_utf8

TINY = Path(__file__).parents[2] / "examples" / "tiny-llama"
BOS = "<|begin_of_text|>"


@cache
def tiny() -> Tokenizer:
    return Tokenizer.load(TINY)


def with_bos(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The post-processor of Llama 3: BOS before every text."""
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
    }
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
        shutil.copy(TINY / name, tmp_path)
    return tmp_path


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes a key."""
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))


def test_the_example_checkpoint() -> None:
    tokenizer = Tokenizer.load(str(TINY))
    assert tokenizer.vocab_size == 4096
    assert tokenizer.bos_id == 0
    assert tokenizer.bos_token == BOS
    assert tokenizer.eos_ids == {1}
    assert tokenizer.special_ids == {0, 1, 2, 3, 4}
    assert tokenizer.special_tokens == {"bos_token": BOS, "eos_token": "<|end_of_text|>"}
    assert tokenizer.encode(f"{BOS}a<|eot_id|>")[::2] == [0, 4]
    assert tokenizer.encode("") == []


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=60))
def test_encoding_and_decoding_return_the_text(text: str) -> None:
    tokenizer = tiny()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(np.array(ids, np.int32)) == text


def test_equality_with_transformers(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = (TINY / "heldout.txt").read_text(encoding="utf-8")[:20000] + f"é😀 {BOS}<|eot_id|>  tail "
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(with_bos(json.loads(path.read_text()))))
    ours, theirs = Tokenizer.load(folder), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for special in (True, False):
        ids = ours.encode(text, add_special_tokens=special)
        assert ids == theirs.encode(text, add_special_tokens=special)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert len(theirs) == ours.vocab_size


@pytest.mark.parametrize("post_processor", [True, False])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_bos_comes_once(folder: Path, post_processor: bool, add_bos: bool | None) -> None:
    path = folder / "tokenizer.json"
    if post_processor:
        path.write_text(json.dumps(with_bos(json.loads(path.read_text()))))
    edit(folder / "tokenizer_config.json", add_bos_token=add_bos)
    tokenizer = Tokenizer.load(folder)
    body = tokenizer.encode("hello", add_special_tokens=False)
    assert 0 not in body
    wanted = post_processor if add_bos is None else add_bos
    assert tokenizer.encode("hello") == ([0, *body] if wanted else body)
    assert tokenizer.encode(f"{BOS}hello") == [0, *body]
    assert tokenizer.encode(f"{BOS}hello", add_special_tokens=False) == [0, *body]
    assert tokenizer.encode("") == ([0] if wanted else [])


@pytest.mark.parametrize(
    ("generation", "model", "own", "expected"),
    [
        (1, 4, "<|end_of_text|>", {1}),
        ([1, 4], None, "<|end_of_text|>", {1, 4}),
        (None, 4, None, {4}),
        (None, [3, 4], None, {3, 4}),
        (1, None, "<|eot_id|>", {1, 4}),
        (None, None, "<|eot_id|>", {4}),
        (None, None, None, set()),
        (None, None, {"content": "<|eot_id|>", "special": True}, {4}),
        (None, None, "not in the vocabulary", set()),
    ],
)
def test_what_ends_an_answer(folder: Path, generation: Any, model: Any, own: Any, expected: set[int]) -> None:
    edit(folder / "generation_config.json", eos_token_id=generation)
    edit(folder / "config.json", eos_token_id=model)
    edit(folder / "tokenizer_config.json", eos_token=own)
    assert Tokenizer.load(folder).eos_ids == expected


def test_tokenizer_json_alone_is_enough(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.bos_token, tokenizer.eos_ids) == (BOS, {1})
    (folder / "generation_config.json").unlink()
    (folder / "config.json").unlink()
    tokenizer = Tokenizer.load(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_tokens) == (None, set(), {})
    assert tokenizer.decode(tokenizer.encode("as before")) == "as before"


def test_special_tokens_in_the_older_file(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", bos_token=None, eos_token={"content": "<|eot_id|>"})
    old = {"bos_token": BOS, "eos_token": "<|end_of_text|>", "additional_special_tokens": ["<x>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(old))
    assert Tokenizer.load(folder).special_tokens == {"bos_token": BOS, "eos_token": "<|eot_id|>"}


def test_a_limit_left_from_training_does_not_cut_the_prompt(folder: Path) -> None:
    limit = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    edit(folder / "tokenizer.json", truncation=limit, padding=padding)
    text = "one two three four five six seven eight"
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(text) == tiny().encode(text)


def test_ids_outside_the_vocabulary() -> None:
    tokenizer = tiny()
    a, b = tokenizer.encode("a")[0], tokenizer.encode("b")[0]
    assert tokenizer.decode([a, 4096, 100_000, b]) == "ab"
    assert not tokenizer.shows(4096)
    assert not tokenizer.shows(0)
    assert tokenizer.shows(a)
    for bad in (-1, 2**33):
        with pytest.raises(UnknownTokenError, match=f"token id {bad} at position 1") as info:
            tokenizer.decode([a, bad])
        assert (info.value.token, info.value.position) == (bad, 1)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BundleError, match=r"tokenizer\.json is missing"):
            Tokenizer.load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("damage", ["truncated", "binary", "list", "empty"])
def test_a_damaged_file_is_named(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(
        {"truncated": whole[: len(whole) // 2], "binary": b"\xff\xfe" + whole, "list": b"[1]", "empty": b""}[
            damage
        ]
    )
    with pytest.raises(BundleError, match=name.replace(".", r"\.")) as info:
        Tokenizer.load(folder)
    assert "export the checkpoint again" in str(info.value)


def test_json_that_is_no_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": {"type": "unheard of"}}')
    with pytest.raises(BundleError, match=r"tokenizer\.json does not describe a tokenizer"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("value", ["</s>", [1, "2"], -1, True, 1.0])
def test_a_bad_end_of_text_is_named(folder: Path, value: Any) -> None:
    edit(folder / "generation_config.json", eos_token_id=value)
    with pytest.raises(BundleError, match=r"generation_config\.json has eos_token_id"):
        Tokenizer.load(folder)


def test_a_folder_in_the_place_of_a_file_is_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").mkdir()
    with pytest.raises(BundleError, match=r"tokenizer_config\.json cannot be read"):
        Tokenizer.load(folder)


def test_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"'\\udcff' at character 2"):
        tiny().encode("ab\udcff")


def test_invalid_utf8_is_located() -> None:
    assert decode_utf8("é😀".encode(), "the prompt") == "é😀"
    assert decode_utf8("\ufeffé\ufeff".encode(), "a file of some editors") == "é\ufeff"
    with pytest.raises(InputError, match=r"prompt\.txt is not valid UTF-8: byte 0xff at offset 3") as info:
        decode_utf8(b"abc\xffd", "prompt.txt")
    assert info.value.offset == 3
    with pytest.raises(InputError) as info:
        decode_utf8("ab😀".encode()[:-1], "standard input")
    assert info.value.offset == 2
