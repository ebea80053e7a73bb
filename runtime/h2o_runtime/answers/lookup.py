"""Prompt lookup: drafts the tokens that followed the same tokens earlier in the conversation.

Summaries, extracts and code changes quote their prompt. So the longest recent match of the last tokens
predicts the next ones (Saxena, 2023, "Prompt Lookup Decoding"). Matches are found as in LZ77, with chains of
equal pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from h2o_runtime.answers.drafter import DraftLength, best_length

SHORTEST, LONGEST = 2, 8  # tokens of a match
CANDIDATES = 64  # earlier places of the last pair to look at
PRIOR = 4.0  # weight of the prior acceptance rate, in tests
MEMORY = 0.9  # factor of a test's weight with each later test


class Match(NamedTuple):
    """The last `length` tokens of a text also come before its token number `end`."""

    end: int
    length: int


class TextIndex:
    """A growing text, and the earlier places of its last tokens.

    tokens  the text
    match   of its end: the longest among the candidates, up to LONGEST, and of those the one that was the match
            before, else the most recent; None where the last pair is new
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self.match: Match | None = None
        self._last: dict[tuple[int, int], int] = {}  # the index after the last place of a pair
        # For the index after a pair: the index after its previous place, or 0 if there is none.
        self._before = [0] * min(len(self.tokens), 1)
        for end, pair in enumerate(zip(self.tokens, self.tokens[1:], strict=False), 2):
            self._before.append(self._last.get(pair, 0))
            self._last[pair] = end
        if self.tokens:
            self.match = self._longest()

    def append(self, token: int) -> None:
        """Append the text's next token."""
        tokens, match = self.tokens, self.match
        pair = (tokens[-1], token) if tokens else None
        goes_on = match is not None and tokens[match.end] == token
        tokens.append(token)
        self._before.append(0 if pair is None else self._last.get(pair, 0))
        if pair is not None:
            self._last[pair] = len(tokens)
        if goes_on:  # none is longer
            assert match is not None
            self.match = Match(match.end + 1, min(match.length + 1, LONGEST))
        else:
            self.match = self._longest()

    def following(self, count: int) -> list[int]:
        """The tokens that follow the match. If they reach the text's end, they repeat from the match's
        start.
        """
        if self.match is None:
            return []
        tokens = self.tokens[self.match.end : self.match.end + count]
        while len(tokens) < count:
            tokens += tokens[: count - len(tokens)]
        return tokens

    def _longest(self) -> Match | None:
        tokens, best = self.tokens, None
        last, end = len(tokens) - 1, self._before[-1]
        for _ in range(CANDIDATES):
            if not end:
                break
            length = SHORTEST
            while length < min(end, LONGEST) and tokens[end - 1 - length] == tokens[last - length]:
                length += 1
            if best is None or length > best.length:
                best = Match(end, length)
                if length == LONGEST:
                    break
            end = self._before[end - 1]
        return best


class Acceptance:
    """How often the token after a match was the right one, by the match's length; recent tests count more."""

    def __init__(self) -> None:
        self._tests = [PRIOR] * (LONGEST + 1)
        self._hits = [PRIOR * (1 - 1.5 / max(length, SHORTEST)) for length in range(LONGEST + 1)]

    def seen(self, length: int, came: bool) -> None:
        self._tests[length] = MEMORY * self._tests[length] + 1
        self._hits[length] = MEMORY * self._hits[length] + came

    def rate(self, length: int) -> float:
        return self._hits[length] / self._tests[length]

    def best_length(self, match: int, limit: int) -> DraftLength:
        """Of a draft after a match of this length."""
        return best_length(lambda i: self.rate(min(match + i, LONGEST)), limit)


class PromptLookup:
    """The text and its index, for one answer. The only work per token is the search for a match of its end.

    Every match is compared with the generated token, drafted or not, so that drafts resume when the text
    starts to repeat.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        """tokens: of the conversation so far."""
        self._index = TextIndex(tokens)
        self._acceptance = Acceptance()

    @property
    def tokens(self) -> list[int]:
        """Of the conversation so far."""
        return self._index.tokens

    def append(self, token: int) -> None:
        """The generated token."""
        index = self._index
        if index.match is not None:
            self._acceptance.seen(index.match.length, index.tokens[index.match.end] == token)
        index.append(token)

    def gain(self, limit: int) -> float:
        return self._length(limit).gain

    def draft(self, limit: int) -> list[int]:
        return self._index.following(self._length(limit).tokens)

    def _length(self, limit: int) -> DraftLength:
        match = self._index.match
        return (
            best_length(lambda i: 0.0, 0)
            if match is None
            else self._acceptance.best_length(match.length, limit)
        )
