"""Text is not markup: a special token that somebody wrote into a message stays text.

A rendered conversation holds marks, such as <|im_end|>, from two sources: the chat template and the messages.
Only the template's may become special tokens. So before rendering a guard, one character that no text needs,
goes behind the first character of each mark in the messages. What the template wrote has none.

A text with guards is called written here. A guard of the text itself is doubled in it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from h2o_runtime.errors import InputError
from h2o_runtime.text.tokenizer import Tokenizer

_GUARD, _MARK = "\ufdd0", "\ufdd1"  # noncharacters
_GUARDED = re.compile(f"(.){_GUARD}", re.DOTALL)
_CONTROL = re.compile(r"<[|｜].+>|<.+[|｜]>|\[\|.+\|\]", re.DOTALL)
_OWN = ("assistant", "system", "developer")  # roles whose texts may hold ordinary marks

Render = Callable[[Sequence[Any], Mapping[str, Any]], str]


class Markup:
    """The marks of one tokenizer and chat template.

    A *control mark* is an added token that is special, or has bars: <|…|>. It never comes from a message.
    An *ordinary mark* is another added token in brackets that the template writes, such as <tool_call>. It may
    come from a system message or an assistant's, because models generate it and some clients send it back.
    """

    def __init__(self, tokenizer: Tokenizer, templates: Iterable[str] = ()) -> None:
        """templates: the chat templates' Jinja sources."""
        source = "\n".join(templates)
        self._tokenizer = tokenizer
        self._ordinary = set()
        self._ids: dict[str, int] = {}
        for token, entry in tokenizer.raw.get_added_tokens_decoder().items():
            text = entry.content
            control = entry.special or _CONTROL.fullmatch(text) is not None
            if len(text) > 1 and (control or (_is_bracketed(text) and text in source)):
                self._ids[text] = token
                if not control:
                    self._ordinary.add(text)
        self._mark_ids = frozenset(self._ids.values())
        self._lengths: dict[str, list[int]] = {}  # of marks by their first character, longest first
        for length, first in sorted({(len(text), text[0]) for text in self._ids}, reverse=True):
            self._lengths.setdefault(first, []).append(length)
        self._first = re.compile(f"[{re.escape(''.join(self._lengths))}]" if self._lengths else "(?!)")

    def render(self, render: Render, messages: Sequence[Any], options: Mapping[str, Any]) -> str:
        """The conversation as a written text. `render` gets the messages and options with guards.

        Guarding whole marks is enough, unless a template joins parts of messages so that they become a mark. So a
        guard behind every first character is preferred, if it does not change what the template does.
        """
        marks, every = (self._conversation(messages, options, strict) for strict in (False, True))
        text = self._minimal(render(*marks))
        if every == marks:
            return text
        try:
            strict = self._minimal(render(*every))
        except InputError:
            return text
        return strict if _plain(strict) == _plain(text) else text

    def encode_within(self, written: str, most: int) -> list[int]:
        """Token ids of a written text; errors are those of `Tokenizer.encode_within`.

        A text without guards gets the ids that the tokenizer gives it. Raises InputError if the tokenizer cannot
        read a mark as text.
        """
        pieces = self._split(written)
        pieces[::2] = map(_plain, pieces[::2])
        wanted = [self._ids[mark] for mark in pieces[1::2]]
        ids = self._tokenizer.encode_within("".join(pieces), most, add_special_tokens=False)
        if self._marks_in(ids) == wanted:
            return ids
        unknown = self._ids.get(self._tokenizer.special_tokens.get("unk_token", ""))  # of unknown characters
        apart = self._renamed.encode(pieces)
        found = (token for token in self._marks_in(apart) if token != unknown)
        if list(found) == [token for token in wanted if token != unknown]:
            return apart
        if _GUARD not in written:
            return ids
        marks = sorted(mark for mark in self._ids if any(mark in piece for piece in pieces[::2]))
        raise InputError(
            f"a message holds {', '.join(marks) or 'a special token'}, which this model's tokenizer cannot read as "
            "text: leave it out"
        )

    def of_answer(self, text: str, ids: Iterable[int], shown: Collection[int] = ()) -> str | None:
        """The written form of a generated text. None if it holds a mark both as one token and as several.

        shown: special tokens that are part of the text
        """
        pieces = self._split(_doubled(text))
        generated = [token for token in self._marks_in(ids) if token in shown or self._tokenizer.shows(token)]
        if not generated:
            return self._guarded(text, foreign=True)
        return "".join(pieces) if generated == [self._ids[mark] for mark in pieces[1::2]] else None

    def _conversation(
        self, messages: Sequence[Any], options: Mapping[str, Any], strict: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        told = [
            self._value(message, not isinstance(message, Mapping) or message.get("role") not in _OWN, strict)
            for message in messages
        ]
        return told, {name: self._value(value, name == "tools", strict) for name, value in options.items()}

    def _value(self, value: Any, foreign: bool, strict: bool) -> Any:
        if isinstance(value, str):
            return self._guarded(value, foreign, strict)
        if isinstance(value, Mapping):
            return {
                self._value(key, foreign, strict): self._value(item, foreign, strict)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._value(item, foreign, strict) for item in value]
        return value

    def _guarded(self, text: str, foreign: bool, strict: bool = False) -> str:
        """A message's text with guards. foreign: also behind ordinary marks. strict: wherever a mark may begin."""
        pieces = self._split(_doubled(text))
        if strict:
            pieces[::2] = (self._first.sub(rf"\g<0>{_GUARD}", piece) for piece in pieces[::2])
        pieces[1::2] = (
            mark if mark in self._ordinary and not foreign else f"{mark[0]}{_GUARD}{mark[1:]}"
            for mark in pieces[1::2]
        )
        return "".join(pieces)

    def _minimal(self, written: str) -> str:
        """With no more guards than its marks need, so that equal conversations are equal texts."""
        pieces = self._split(written)
        pieces[::2] = (self._guarded(_plain(piece), foreign=True) for piece in pieces[::2])
        return "".join(pieces)

    def _split(self, written: str) -> list[str]:
        """Texts and unguarded marks by turns; the first and the last piece are texts."""
        pieces, end = [], 0
        for found in self._first.finditer(written):
            start = found.start()
            if start < end:
                continue
            for length in self._lengths[found[0]]:
                if (mark := written[start : start + length]) in self._ids:
                    pieces += [written[end:start], mark]
                    end = start + length
                    break
        return [*pieces, written[end:]]

    def _marks_in(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if token in self._mark_ids]

    @cached_property
    def _renamed(self) -> _Renamed:
        return _Renamed(self._tokenizer.raw, self._ids)


class _Renamed:
    """A tokenizer whose marks have names that no text contains; otherwise the same, with the same vocabulary.

    So one text is encoded at once, and the tokenizer's own rules hold at every border.
    """

    def __init__(self, raw: tokenizers.Tokenizer, marks: Iterable[str]) -> None:
        self._prefix = _MARK + secrets.token_hex(16)
        renamed, added = frozenset(marks), raw.get_added_tokens_decoder()
        texts = {
            token: self._prefix * (entry.content in renamed) + entry.content for token, entry in added.items()
        }
        self._raw = tokenizers.Tokenizer(raw.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(raw, part) is not None:
                setattr(self._raw, part, getattr(raw, part))
        self._raw.add_tokens(
            [
                tokenizers.AddedToken(
                    texts[token],
                    single_word=entry.single_word,
                    lstrip=entry.lstrip,
                    rstrip=entry.rstrip,
                    normalized=entry.normalized,
                    special=entry.special,
                )
                for token, entry in added.items()
            ]
        )
        self._ids = {self._raw.token_to_id(text): token for token, text in texts.items()}

    def encode(self, pieces: Sequence[str]) -> list[int]:
        """Token ids of texts and marks by turns, as `Markup._split` gives them."""
        text = "".join(self._prefix * (index % 2) + piece for index, piece in enumerate(pieces))
        ids = self._raw.encode_batch([text], add_special_tokens=False)[0].ids  # which releases the GIL
        return [self._ids.get(token, token) for token in ids]


def _is_bracketed(text: str) -> bool:
    """Not a word or blanks, which also are added tokens of some checkpoints."""
    return not text[0].isalnum() and not text[-1].isalnum() and any(map(str.isalnum, text))


def _doubled(text: str) -> str:
    return text.replace(_GUARD, 2 * _GUARD)


def _plain(written: str) -> str:
    """A written text without its guards."""
    return _GUARDED.sub(r"\1", written) if _GUARD in written else written
