"""Streaming: pieces joined equal decoding at once, none splits a character, no stop string gets out."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from h2o_runtime.errors import ConfigError
from h2o_runtime.text import StopStrings, TextStream, Tokenizer

TINY = Path(__file__).parents[2] / "examples" / "tiny-llama"


@cache
def tiny() -> Tokenizer:
    return Tokenizer.load(TINY)


@cache
def byte_level() -> Tokenizer:
    """All 256 bytes, and tokens that begin or end in the middle of a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    as_token = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def piece(data: bytes) -> str:
        # Each byte's own character, found through one that encodes it, as the mapping is not published.
        table = {}
        for code in [*range(256), 0x2014, 0x1F600]:
            text = chr(code)
            for byte, char in zip(text.encode(), as_token.pre_tokenize_str(text)[0][0], strict=True):
                table[byte] = char
        return "".join(table[byte] for byte in data)

    smile = "😀".encode()
    parts = [smile[:2], smile[2:], smile[3:] + smile[:1], smile[1:3], b"a" + smile[:3], b"\xa9\xc3", b" the"]
    vocab = {token: i for i, token in enumerate([*alphabet, *(piece(part) for part in parts)])}
    raw = tokenizers.Tokenizer(models.BPE(vocab, []))
    raw.pre_tokenizer, raw.decoder = as_token, decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<eos>", special=True)])
    raw.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(raw, special_tokens={"eos_token": "<eos>"})


@cache
def sentencepiece(metaspace: bool = False) -> Tokenizer:
    """In the style of Llama 2: spaces are part of words, unknown characters become byte tokens."""
    words = ["▁", "▁▁", "▁the", "▁cat", "s", "▁s", "a", "b", "é", ".", "▁a"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {token: i for i, token in enumerate(tokens)}
    raw = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if metaspace:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        raw.decoder = decoders.Sequence(
            [
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Metaspace(prepend_scheme="first", split=False),
            ]
        )
    else:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        raw.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    raw.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return Tokenizer(raw, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    text = TextStream(tokenizer)
    return [*(text.push(token) for token in ids), text.finish()]


# Text with characters of every UTF-8 length, often next to each other, and runs of spaces.
texts = st.text(
    st.one_of(st.sampled_from(" ab.é—字😀👩‍🚀ﬁ\n"), st.characters(exclude_categories=["Cs"])), max_size=40
)


@settings(max_examples=19, deadline=None)
@given(text=texts)
@pytest.mark.parametrize("make", [tiny, byte_level, sentencepiece])
def test_streamed_text_is_the_text(make: object, text: str) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert pieces[-1] == ""


@settings(max_examples=48, deadline=None)
@given(data=st.data())
def test_streamed_bytes_equal_plain_decoding_whatever_they_are(data: st.DataObject) -> None:
    tokenizer = byte_level()
    partial = st.integers(256, tokenizer.vocab_size)
    high = st.sampled_from(
        [tokenizer.encode(chr(c), False)[i] for c in (0xE9, 0x5B57, 0x1F600) for i in (0, 1)]
    )
    tokens = st.one_of(partial, high, st.integers(0, tokenizer.vocab_size + 2))
    ids = data.draw(st.lists(tokens, max_size=70))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("metaspace", [False, True])
@settings(max_examples=24, deadline=None)
@given(data=st.data())
def test_streamed_pieces_equal_plain_decoding_with_spaces_in_the_tokens(
    metaspace: bool, data: st.DataObject
) -> None:
    tokenizer = sentencepiece(metaspace)
    words = st.integers(0, tokenizer.vocab_size + 1).filter(lambda i: not 3 <= i < 259).map(lambda i: [i])
    characters = st.sampled_from("x—字😀").map(lambda c: [3 + byte for byte in c.encode()])
    stray = st.lists(st.sampled_from([3 + 0x80, 3 + 0xF0]), min_size=1, max_size=25).map(
        lambda run: [263, *run, 263]
    )
    runs = data.draw(st.lists(st.one_of(words, words, characters, stray), max_size=25))
    ids = list(chain.from_iterable(runs))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_an_endless_chain_of_split_characters_still_streams() -> None:
    """Each token ends one emoji and begins the next, so no token ever ends where a character does."""
    tokenizer = byte_level()
    smile = "😀".encode()
    first = tokenizer.encode("😀", False)
    joint = 256 + 2  # last byte and first byte
    middle = 256 + 3  # the two between
    ids = [*first[:3], *([joint, middle] * 200)]
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == (smile * 201)[:-1].decode(errors="replace")
    assert pieces.count("😀") == 200
    longest_silence = max(len(run) for run in "".join("x" if piece else "." for piece in pieces).split("x"))
    assert longest_silence <= 3


def test_a_model_stuck_on_bad_bytes_streams_replacements() -> None:
    tokenizer = byte_level()
    stray = tokenizer.encode("é", False)[1]
    pieces = stream(tokenizer, [stray] * 200)
    assert "".join(pieces) == tokenizer.decode([stray] * 200)
    assert sum(map(len, pieces[:-1])) > 180


@pytest.mark.parametrize("make", [tiny, byte_level, sentencepiece])
@pytest.mark.parametrize("text", ["ab é 字😀 ", "😀", "\ufffd"])
def test_the_cost_of_a_token_does_not_grow(make: object, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer: Tokenizer = make()  # type: ignore[operator]
    ids = tokenizer.encode(text * 300, add_special_tokens=False)
    decode, lengths = tokenizer.decode, []

    def counted(ids: list[int], skip_special_tokens: bool = True, shown: Collection[int] = ()) -> str:
        lengths.append(len(ids))
        return decode(ids, skip_special_tokens, shown)

    monkeypatch.setattr(tokenizer, "decode", counted)
    stream(tokenizer, ids)
    assert max(lengths) <= 36
    assert len(lengths) <= 3 * len(ids) + 1


def test_special_and_padded_ids_show_nothing_and_split_nothing() -> None:
    tokenizer = byte_level()
    smile = tokenizer.encode("😀", add_special_tokens=False)
    eos = next(iter(tokenizer.special_ids))
    ids = [*smile[:2], eos, 10**6, *smile[2:], eos]
    assert stream(tokenizer, ids) == ["", "", "", "", "", "😀", "", ""]
    assert tokenizer.decode(ids) == "😀"


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = byte_level()
    text = TextStream(tokenizer)
    smile = tokenizer.encode("😀", add_special_tokens=False)
    assert [text.push(token) for token in smile[:3]] == ["", "", ""]
    assert text.finish() == "\ufffd"
    assert [text.push(token) for token in smile] == ["", "", "", "😀"]
    assert text.finish() == ""


def test_a_continued_text_keeps_its_first_space() -> None:
    tokenizer = sentencepiece()
    the, cat = 261, 262
    assert stream(tokenizer, [the, cat]) == ["the", " cat", ""]
    text = TextStream(tokenizer, prefix=[the])
    assert text.push(cat) == " cat"
    smile = tokenizer.encode("a😀", add_special_tokens=False)
    text = TextStream(tokenizer, prefix=smile[:-2])
    assert [text.push(token) for token in smile[-2:]] == ["", "😀"]


# Stop strings.


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What may be shown and which stop ends it, one character at a time: the definition."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)] + [""]


@settings(max_examples=72, deadline=None)
@given(
    text=st.text("abc", max_size=60),
    stops=st.lists(st.text("abc", min_size=1, max_size=6), max_size=4),
    places=st.lists(st.integers(0, 1000), max_size=30),
)
def test_stop_strings_never_get_out(text: str, stops: list[str], places: list[int]) -> None:
    expected, stop = first_stop(text, stops)
    gate, shown = StopStrings(stops), ""
    for piece in cut(text, places):
        shown += gate.push(piece)
        # At every moment, what is out is a part of what may be.
        assert expected.startswith(shown)
    shown += gate.finish()
    assert (shown, gate.stopped) == (expected, stop)
    assert not any(stop in shown for stop in stops)
    if stop is not None:
        assert gate.push("more") == ""
        assert gate.finish() == ""


@settings(max_examples=24, deadline=None)
@given(text=st.text("ab\n", max_size=40), stops=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3))
def test_no_more_is_held_back_than_needed(text: str, stops: list[str]) -> None:
    gate, shown, seen = StopStrings(stops), "", ""
    for char in text:
        shown += gate.push(char)
        seen += char
        if gate.stopped is not None:
            break
        held = seen[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_one_stop_string_and_none() -> None:
    gate = StopStrings("ab")
    assert [gate.push("xa"), gate.push("b")] == ["x", ""]
    assert gate.stopped == "ab"
    free = StopStrings([])
    assert free.push("abc") == "abc"
    assert free.finish() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3], [None]])
def test_bad_stop_strings_are_refused(stops: list[object]) -> None:
    with pytest.raises(ConfigError, match=r"^stop has") as info:
        StopStrings(stops)  # type: ignore[arg-type]
    assert info.value.field == "stop"
