"""Prompt lookup's index against a search of the whole text, and how long its drafts are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from h2o_runtime.answers.lookup import CANDIDATES, LONGEST, SHORTEST, Acceptance, PromptLookup, TextIndex

TEXTS = st.integers(1, 6).flatmap(lambda most: st.lists(st.integers(0, most), max_size=120))


def matches(text: list[int]) -> list[tuple[int, int]]:
    """Where the text's last pair stood before, the most recent first: what is behind it, and how far both agree."""
    found = []
    for end in range(len(text) - 1, SHORTEST - 1, -1):
        length = 0
        while length < min(end, LONGEST) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        if length >= SHORTEST:
            found.append((end, length))
    return found


def check(index: TextIndex, text: list[int]) -> None:
    assert index.tokens == text
    expected = matches(text)
    if not expected:
        assert index.match is None
        return
    assert index.match is not None
    assert tuple(index.match) in expected
    assert index.match.length >= max(length for _, length in expected[:CANDIDATES])


@given(text=TEXTS, start=st.integers(0, 120))
def test_a_match_is_the_longest_whether_the_text_came_at_once_or_token_by_token(
    text: list[int], start: int
) -> None:
    start = min(start, len(text))
    index = TextIndex(text[:start])
    check(index, text[:start])
    for i, token in enumerate(text[start:], start + 1):
        index.append(token)
        check(index, text[:i])


@given(text=TEXTS)
def test_of_equal_matches_the_most_recent_is_taken(text: list[int]) -> None:
    expected = matches(text)[:CANDIDATES]
    match = TextIndex(text).match
    assert (match is None) == (not expected)
    if match is not None:
        assert tuple(match) == max(expected, key=lambda one: (one[1], one[0]))


@given(text=TEXTS, count=st.integers(0, 20))
def test_what_follows_is_the_text_behind_the_match_and_goes_on_with_itself(
    text: list[int], count: int
) -> None:
    index = TextIndex(text)
    found = index.following(count)
    if index.match is None:
        assert found == []
        return
    expected = list(text)
    for at in range(index.match.end, index.match.end + count):
        expected.append(expected[at])
    assert found == expected[len(text) :]


def test_a_match_that_goes_on_is_kept_whatever_came_in_between() -> None:
    index = TextIndex([1, 2, 3, 4, 5, 6, 9, 3, 4, 7, 1, 2, 3])
    assert index.match == (3, 3)
    index.append(4)
    assert index.match == (4, 4)
    assert index.following(2) == [5, 6]


def test_drafts_follow_the_acceptance() -> None:
    acceptance = Acceptance()
    assert acceptance.best_length(2, 7).tokens == 0  # most pairs are followed by something else
    assert acceptance.best_length(LONGEST, 7).tokens >= 3
    for _ in range(20):
        acceptance.seen(LONGEST, True)
    assert acceptance.best_length(LONGEST, 7).tokens == 7
    assert acceptance.best_length(LONGEST, 3).tokens == 3
    for _ in range(40):
        acceptance.seen(LONGEST, False)
    assert acceptance.best_length(LONGEST, 7).tokens == 0
    for _ in range(40):
        acceptance.seen(LONGEST, True)
    assert acceptance.best_length(LONGEST, 7).tokens == 7


def test_matches_are_tested_while_nothing_is_drafted() -> None:
    lookup = PromptLookup([5, 6, 7] * 3)
    for token in range(10, 60):  # after 6, 7 always something else
        for one in (5, 6, token):
            lookup.append(one)
    lookup.append(5)
    lookup.append(6)
    assert lookup.draft(7) == []
    for _ in range(30):
        for one in (1, 2, 3, 4):
            lookup.append(one)
    assert lookup.draft(7) == [1, 2, 3, 4, 1, 2, 3]
    assert lookup.draft(2) == [1, 2]
    assert lookup.draft(0) == []
