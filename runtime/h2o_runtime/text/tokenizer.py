"""Text to token ids and back, with the checkpoint's tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from h2o_runtime.errors import BundleError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.files.inputs import confined
from h2o_runtime.text.files import REMEDY, read_json, special_tokens

_BLOCK = 1 << 16  # characters encoded at a time while checking whether a text is too long
_MARGIN = 1.05  # a text encoded in blocks has a few more tokens than in one piece


class Tokenizer:
    """A checkpoint's tokenizer. Make one with `Tokenizer.load`; it holds no state between calls.

    raw:            the library's own tokenizer.
    special_tokens: text of each special token by role, as {"bos_token": "<s>"}; chat templates use them.
    special_ids:    ids that `decode` leaves out.
    eos_ids:        ids that end an answer; there may be several, or none.
    bos_id:         id of the beginning of a text, or None.
    vocab_size:     highest id + 1. The model's own may be larger, padded to a round number.
    """

    FILE = "tokenizer.json"

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        *,
        special_tokens: dict[str, str],
        eos_ids: Iterable[int] = (),
        add_bos: bool | None = None,
    ) -> None:
        """add_bos: whether a text begins with BOS; None: the tokenizer's own post-processor decides."""
        raw.no_truncation()  # a length limit left over from training would silently cut the prompt
        raw.no_padding()
        self.raw = raw
        self.special_tokens = dict(special_tokens)
        named = (raw.token_to_id(text) for text in self.special_tokens.values())
        added = raw.get_added_tokens_decoder()
        flagged = {token for token, entry in added.items() if entry.special}
        self.special_ids = frozenset(flagged.union(token for token in named if token is not None))
        self.vocab_size: int = max(raw.get_vocab_size(), *(token + 1 for token in added), 0)
        self.eos_ids: frozenset[int] = frozenset(eos_ids)
        self.bos_id: int | None = raw.token_to_id(self.bos_token) if self.bos_token else None
        self._post_processor_adds_bos = self.bos_id is not None and raw.encode("").ids[:1] == [self.bos_id]
        self._adds_bos = self._post_processor_adds_bos if add_bos is None else add_bos

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load a bundle's or a checkpoint's tokenizer from its folder.

        tokenizer.json is required; tokenizer_config.json, generation_config.json and config.json add the
        special tokens and the end-of-answer tokens. Raises `BundleError` that names the missing or damaged
        file.
        """
        folder = Path(folder)
        path = confined(folder, cls.FILE)
        try:
            raw = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            if read_json(path) is None:  # which includes the place of the damage
                raise BundleError(
                    f"{path} is missing: give the folder of a bundle or a checkpoint that has one, or convert an "
                    "older checkpoint's tokenizer with transformers' AutoTokenizer and save_pretrained"
                ) from None
            raise BundleError(f"{path} does not describe a tokenizer ({error}): {REMEDY}") from error
        names = special_tokens(folder)
        config = read_json(folder / "tokenizer_config.json")
        add_bos = (config or {}).get("add_bos_token")
        eos_ids = _model_ids(folder, "eos_token_id")
        if config is None:  # then only the model's configuration names these tokens
            for role in ("bos_token", "eos_token"):
                texts = [raw.id_to_token(token) for token in _model_ids(folder, f"{role}_id")]
                names.setdefault(role, next((text for text in texts if text is not None), ""))
        # The tokenizer's own end of text also counts: a fine-tuned checkpoint may name its new one only
        # there.
        own_eos = raw.token_to_id(names["eos_token"]) if names.get("eos_token") else None
        return cls(
            raw,
            special_tokens={role: text for role, text in names.items() if text},
            eos_ids=eos_ids if own_eos is None else {*eos_ids, own_eos},
            add_bos=add_bos if isinstance(add_bos, bool) else None,
        )

    @property
    def bos_token(self) -> str | None:
        """The text of BOS, or None."""
        return self.special_tokens.get("bos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it become their ids.

        With `add_special_tokens` the text begins with exactly one BOS if the checkpoint uses BOS: a rendered
        chat template that already begins with it does not get a second. Encode such a prompt with
        `add_special_tokens=False` to add nothing, as transformers' `apply_chat_template` does.

        Raises `InputError` when the text holds a lone surrogate, which is no character.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text holds {text[error.start]!a} at character {error.start}, half of a surrogate pair: "
                "it was decoded wrongly on its way here; decode the input as UTF-8"
            ) from error
        # As a batch of one, which releases the GIL; the library's plain encode does not.
        ids: list[int] = self.raw.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        if not add_special_tokens or self.bos_id is None:
            return ids
        if self._post_processor_adds_bos:
            ids = ids[1:]
        return [self.bos_id, *ids] if self._adds_bos and ids[:1] != [self.bos_id] else ids

    def encode_within(self, text: str, most: int, add_special_tokens: bool = True) -> list[int]:
        """As `encode`, for a text of any length that should have at most `most` tokens.

        A text that is far too long costs no more time and memory than one that fits: it is encoded block by
        block until the limit is exceeded. ContextOverflowError then gives a lower bound of its tokens. A text
        slightly above the limit is returned.
        """
        # Each token stands for a byte or more: fewer characters are not refused, whatever the vocabulary has.
        longest = self.longest_token if len(text) > most else None
        if longest is not None and len(text) > longest * most:
            raise ContextOverflowError(len(text) // longest, most, at_least=True)
        if len(text) > _BLOCK:
            found = 0
            for start in range(0, len(text), _BLOCK):
                found += len(self.encode(text[start : start + _BLOCK], add_special_tokens=False))
                if found > _MARGIN * most + 64:
                    raise ContextOverflowError(found, most, at_least=True)
        return self.encode(text, add_special_tokens)

    @cached_property
    def longest_token(self) -> int | None:
        """The most UTF-8 bytes of text that one token can stand for; None if there is no limit, for example
        if the tokenizer drops blanks.
        """
        growth = _growth(self.raw)
        if growth is None:
            return None
        byte_level = isinstance(self.raw.decoder, tokenizers.decoders.ByteLevel)  # a character for each byte
        lengths = (len(token if byte_level else token.encode()) for token in self.raw.get_vocab(False))
        added = (len(entry.content.encode()) for entry in self.raw.get_added_tokens_decoder().values())
        return growth * max(max(lengths, default=1), max(added, default=1))

    def special_id(self, text: str) -> int | None:
        """The id of a special token; None for any other text."""
        token = self.raw.token_to_id(text)
        return token if token in self.special_ids else None

    def decode(
        self, ids: Iterable[int], skip_special_tokens: bool = True, shown: Collection[int] = ()
    ) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids without a token become nothing,
        because a model's vocabulary may be padded beyond its tokenizer's.

        shown: special tokens that are not skipped. Raises `UnknownTokenError` for an id that no vocabulary has.
        """
        ids = [int(token) for token in ids]
        for position, token in enumerate(ids):
            if not 0 <= token < 2**31:
                raise UnknownTokenError(token, self.vocab_size, position)
        if skip_special_tokens:
            ids = [token for token in ids if token not in self.special_ids or token in shown]
        return str(self.raw.decode(ids, skip_special_tokens=False))

    def shows(self, token: int) -> bool:
        """Whether `decode` gives text for the token: it is known and not special."""
        return token not in self.special_ids and self.raw.id_to_token(token) is not None


def _growth(raw: tokenizers.Tokenizer) -> int | None:
    """The most bytes of a text for each byte that its tokens encode; None if some bytes may disappear."""
    model = raw.model
    if not isinstance(model, tokenizers.models.BPE) or (model.fuse_unk and not model.byte_fallback):
        return None
    growth = 1
    for step in _steps(raw.normalizer, "normalizers"):
        if step["type"] == "NFC":
            growth *= 3
        elif step["type"] == "Replace":
            if len(step["content"]) < len(step["pattern"].get("String", step["content"] + " ")):
                return None
        elif step["type"] != "Prepend":
            return None
    for step in _steps(raw.pre_tokenizer, "pretokenizers"):
        keeps_text = step["type"] in ("ByteLevel", "Metaspace", "Digits") or (
            step["type"] == "Split" and step["behavior"] != "Removed"
        )
        if not keeps_text:
            return None
    return growth


def _steps(step: Any, of_sequence: str) -> list[dict[str, Any]]:
    """A step of the tokenizer, or the steps of a sequence, from tokenizer.json."""
    if step is None:
        return []
    described = json.loads(step.__getstate__())
    if described["type"] != "Sequence":
        return [described]
    return list(described[of_sequence])


def _model_ids(folder: Path, key: str) -> set[int]:
    """Ids under `key`, one or a list of them, in generation_config.json, or else in config.json."""
    for name in ("generation_config.json", "config.json"):
        value: Any = (read_json(folder / name) or {}).get(key)
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
            raise BundleError(
                f"{folder / name} has {key} = {value!r}: it must be a token id or a list of them"
            )
        return set(ids)
    return set()
