"""Prompt lookup: what may come next, from what came next in the conversation before.

Summaries, extracts and changes of code quote their prompt. So the longest recent match of the last tokens says what
may follow (Saxena, 2023, "Prompt Lookup Decoding"). The matches are found as LZ77 finds them, by chains of equal
pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SHORTEST, LONGEST = 2, 8  # tokens of a match
CANDIDATES = 64  # earlier places of the last pair that are looked at
ROW_COST = 0.25  # of one more row in a decode step, in steps of one row: measured, see docs/decode.md
PRIOR = 4.0  # tests that the first guess of an acceptance counts as
MEMORY = 0.9  # what a test counts, once there is the next one


class Match(NamedTuple):
    """The last `length` tokens of a text also stand before its token number `end`."""

    end: int
    length: int


class TextIndex:
    """A text that grows, and where its last tokens stood before.

    tokens  the text
    match   of its end: the longest among the candidates, up to LONGEST, and of those the one that was the match
            before, else the most recent; None where the last pair is new
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens = list(tokens)
        self.match: Match | None = None
        self._last: dict[tuple[int, int], int] = {}  # behind the last place of a pair
        # By what is behind a pair: what is behind its place before, or 0 where it is new.
        self._before = [0] * min(len(self.tokens), 1)
        for end, pair in enumerate(zip(self.tokens, self.tokens[1:], strict=False), 2):
            self._before.append(self._last.get(pair, 0))
            self._last[pair] = end
        if self.tokens:
            self.match = self._longest()

    def append(self, token: int) -> None:
        """The text's next token."""
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
        """The tokens that follow the match. Where they reach the text's end they go on with themselves."""
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
    """How often the token behind a match was the one that came, by the match's length: recent ones count more."""

    def __init__(self) -> None:
        self._tests = [PRIOR] * (LONGEST + 1)
        self._hits = [PRIOR * (1 - 1.5 / max(length, SHORTEST)) for length in range(LONGEST + 1)]

    def seen(self, length: int, came: bool) -> None:
        self._tests[length] = MEMORY * self._tests[length] + 1
        self._hits[length] = MEMORY * self._hits[length] + came

    def rate(self, length: int) -> float:
        return self._hits[length] / self._tests[length]

    def draft_length(self, match: int, most: int) -> int:
        """How many tokens behind a match of this length give most tokens for a step's time; 0 where none does."""
        best, chosen, tokens, all_came = 1.0, 0, 1.0, 1.0
        for count in range(1, most + 1):
            all_came *= self.rate(min(match + count - 1, LONGEST))
            tokens += all_came
            gain = tokens / (1 + ROW_COST * count)
            if gain > best:
                best, chosen = gain, count
        return chosen


class Drafter:
    """Drafts for one answer. Nothing is done for a token but to look for the match of its end.

    Every match is tested by the token that came, whether it was drafted or not, so that drafts come back where
    the text begins to repeat.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        """tokens: of the conversation so far."""
        self._index = TextIndex(tokens)
        self._acceptance = Acceptance()

    def append(self, token: int) -> None:
        """The token that came."""
        index = self._index
        if index.match is not None:
            self._acceptance.seen(index.match.length, index.tokens[index.match.end] == token)
        index.append(token)

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens that are likely enough to come next."""
        match = self._index.match
        if match is None or most < 1:
            return []
        return self._index.following(self._acceptance.draft_length(match.length, most))
