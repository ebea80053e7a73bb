"""The tokens of a conversation's text, as they were read and generated.

Encoding an answer's text again may give other tokens than the generated ones. Then the cache could not be
used, and the next answer would differ.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

IntArray = NDArray[np.int64]

MOST_BYTES = 16 << 20  # of all transcripts that a model stores


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    text: str
    ids: list[int]
    turns: list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Transcript:
    """A chat's prompt and its answer.

    text   the rendered prompt, then the answer
    ids    int64 [n]: the tokens of that text
    turns  for every answer, the number of ids and of characters up to its end, rising; the last is all of both
    """

    text: str
    ids: IntArray
    turns: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + sys.getsizeof(self.text)

    def beginning(self, text: str) -> tuple[int, int]:
        """The last turn that `text` continues: its ids and characters, (0, 0) if there is none."""
        found = (0, 0)
        for ids, characters in self.turns:
            if not text.startswith(self.text[found[1] : characters], found[1]):
                break
            found = ids, characters
        return found

    def until(self, rows: int) -> Transcript | None:
        """The turns that a session of this many tokens holds. The last token of an answer may be missing."""
        turns = tuple(turn for turn in self.turns if turn[0] <= rows + 1)
        if len(turns) == len(self.turns):
            return self
        if not turns:
            return None
        ids, characters = turns[-1]
        return Transcript(self.text[:characters], self.ids[:ids], turns)

    def written(self) -> bytes:
        """In the form that `read` accepts."""
        value = _Written(text=self.text, ids=self.ids.tolist(), turns=list(self.turns))
        return value.model_dump_json().encode()

    @classmethod
    def read(cls, data: bytes) -> Transcript:
        """Raises ValueError for any other input than `written`'s result."""
        found = _Written.model_validate_json(data)
        turns = ((0, 0), *found.turns)
        rising = all(a < c and b <= d for (a, b), (c, d) in pairwise(turns))
        if not rising or turns[-1] != (len(found.ids), len(found.text)) or not found.turns:
            raise ValueError("turns that the text does not have")
        return cls(found.text, np.array(found.ids, np.int64), tuple(found.turns))


class Transcripts:
    """The transcripts of the last conversations, newest first, in at most `most_bytes` of memory.

    One thread may read while another adds.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._known: tuple[Transcript, ...] = ()  # replaced as a whole

    def beginnings(self, text: str) -> list[tuple[int, IntArray]]:
        """The known beginnings of `text`: characters and their ids, the longest first."""
        found = [(transcript, transcript.beginning(text)) for transcript in self._known]
        begun = [(characters, transcript.ids[:ids]) for transcript, (ids, characters) in found if characters]
        return sorted(begun, key=lambda beginning: beginning[0], reverse=True)

    def add(self, transcript: Transcript) -> None:
        """The oldest transcripts are removed to make room, and those that the new one continues."""
        known, room = [transcript], self._most_bytes - transcript.nbytes
        for earlier in self._known:
            room -= earlier.nbytes
            if room < 0:
                break
            if earlier.turns[-1] not in transcript.turns or not transcript.text.startswith(earlier.text):
                known.append(earlier)
        self._known = tuple(known)

    def answered(self, text: str, ids: IntArray, answer: str, answer_ids: IntArray) -> Transcript:
        """Store the answer to a prompt of these ids [n]."""
        turns: tuple[tuple[int, int], ...] = ()
        for transcript in self._known:
            begun = transcript.beginning(text)
            same = np.array_equal(transcript.ids[: begun[0]], ids[: begun[0]])
            if same and begun > (turns or ((0, 0),))[-1]:
                turns = transcript.turns[: transcript.turns.index(begun) + 1]
        all_ids, whole = np.concatenate((ids, answer_ids)), text + answer
        transcript = Transcript(whole, all_ids, (*turns, (len(all_ids), len(whole))))
        self.add(transcript)
        return transcript
