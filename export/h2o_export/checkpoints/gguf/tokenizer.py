"""The tokenizer in a GGUF file's metadata, as the files of a Hugging Face folder."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from h2o_export.checkpoints.gguf.header import Header
from h2o_export.checkpoints.gguf.pre_tokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from h2o_runtime.errors import BundleError, CheckpointError, UnsupportedModelError
from h2o_runtime.text import Tokenizer

log = logging.getLogger(__name__)

BYTES = "gpt2"
KINDS = (BYTES, "llama", "gemma4")  # byte-level BPE; sentencepiece; sentencepiece with its merges
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Ends of Gemma's turns; files do not list them with these, and llama.cpp knows them too.
_ENDS_OF_TURN = ("<end_of_turn>", "<turn|>")


def tokenizer_files(header: Header) -> dict[str, str]:
    """Text of each file by its name, as `Tokenizer.load` and `ChatTemplate.load` read them.

    Raises CheckpointError if the file has no tokenizer or a broken one, UnsupportedModelError for an
    unsupported kind of tokenizer.
    """
    tokens, kind = _value(header, "tokens"), _value(header, "model")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{header.path}: has no tokenizer; convert the model again with its tokenizer")
    if kind not in KINDS:
        raise UnsupportedModelError(
            f"{header.path}: a tokenizer of kind {kind!r} is not supported; supported are {', '.join(KINDS)}"
        )
    pre = _pre_tokenizer(header) if kind == BYTES else None
    add_bos = _value(header, "add_bos_token")
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, key in _ROLES.items():
        token = _token(header, key)
        if token is not None:
            settings[role] = tokens[token]
    by_default = kind == "llama" if pre is None else pre.adds_bos
    settings["add_bos_token"] = by_default if add_bos is None else bool(add_bos)
    named = {token for key in _ENDS if (token := _token(header, key)) is not None}
    ends = sorted(named | {tokens.index(end) for end in _ENDS_OF_TURN if end in tokens})
    files = {
        "tokenizer.json": _tokenizer_json(header, pre),
        "tokenizer_config.json": json.dumps(settings, indent=2, ensure_ascii=False),
        "generation_config.json": json.dumps({"eos_token_id": ends} if ends else {}),
        **_templates(header),
    }
    _check(header, files)
    return files


def _pre_tokenizer(header: Header) -> PreTokenizer:
    """Raises UnsupportedModelError for a name that it does not know."""
    name = _value(header, "pre")
    if not name:
        log.warning(
            "%s: does not name its pre-tokenizer, so texts are split by llama.cpp's default, and token ids may be "
            "wrong; convert the model again",
            header.path,
        )
        name = DEFAULT
    known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if known is None:
        raise UnsupportedModelError(
            f"{header.path}: the pre-tokenizer {name!r} is not supported, and with another one token ids would be "
            "wrong; export the model's folder with tokenizer.json instead"
        )
    return known


def _tokenizer_json(header: Header, pre: PreTokenizer | None) -> str:
    """By transformers' conversion. How byte-level BPE splits a text is llama.cpp's."""
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        # In a folder of its own: other files beside the GGUF file belong to other checkpoints.
        alone = Path(folder) / "model.gguf"
        alone.symlink_to(header.path.resolve())
        try:
            converted = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=alone.name)
            described: dict[str, Any] = json.loads(converted.backend_tokenizer.to_str())
        except Exception as error:  # the conversion raises many kinds of errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise CheckpointError(
                f"{header.path}: transformers cannot build its tokenizer: {reason}; download the file again"
            ) from error
    if pre is not None:
        described["pre_tokenizer"] = pre.to_json()
        described["model"]["ignore_merges"] = pre.whole_words
    return json.dumps(described, ensure_ascii=False)


def _templates(header: Header) -> dict[str, str]:
    """The chat template, and further templates by name."""
    begin = "tokenizer.chat_template"
    found: dict[str, str] = {}
    for key, text in header.metadata.items():
        if key == begin and isinstance(text, str):
            found["chat_template.jinja"] = text
        elif key.startswith(f"{begin}.") and isinstance(text, str):
            name = key.removeprefix(f"{begin}.")
            if name.replace("_", "").replace("-", "").isalnum():
                found[f"additional_chat_templates/{name}.jinja"] = text
    return found


def _check(header: Header, files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_files(files, Path(folder))
        try:
            Tokenizer.load(folder)
        except BundleError as error:
            raise CheckpointError(f"{header.path}: its tokenizer is damaged: {error}") from error


def write_files(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _value(header: Header, key: str) -> Any:
    return header.metadata.get(f"tokenizer.ggml.{key}")


def _token(header: Header, key: str) -> int | None:
    """A token's id, if the file names one inside its vocabulary."""
    token = _value(header, key)
    if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < len(_value(header, "tokens")):
        return token
    return None
