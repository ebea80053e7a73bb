"""What belongs to one conversation: its tokens, how they came about, and what policies remember of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.config import PrefillConfig
from h2o_runtime.reuse import Provenance
from h2o_runtime.sessions.transcript import Transcript

IntArray = NDArray[np.int64]
Float32 = NDArray[np.float32]


class Session:
    """The tokens whose keys and values are kept, one a row of the cache.

    tokens     int64 [cap], of which the first `length` are valid
    positions  int64 [cap]: where in the text each stood. Rows are counted as they are kept, positions as they
               were read
    generated  bool [cap], true where decode put the token, not a prompt
    origin     how they came about
    logits     float32 [vocab] after the last of them, where they are at hand
    transcript the text that they stand for, where they are a chat
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: IntArray = np.zeros(capacity, np.int64)
        self.positions: IntArray = np.zeros(capacity, np.int64)
        self.generated: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.length = 0
        self.origin = Provenance()
        self.logits: Float32 | None = None
        self.transcript: Transcript | None = None
        self.prefill_state: Any = None  # of the policy that `state_config` names
        self.state_config: PrefillConfig | None = None
        self.decode_state: Any = None

    @property
    def next_position(self) -> int:
        """Where the next token stands in the text."""
        return int(self.positions[self.length - 1]) + 1 if self.length else 0

    def append(self, tokens: IntArray | Sequence[int], generated: bool) -> None:
        """Record tokens whose keys and values every layer has written."""
        begin, end = self.length, self.length + len(tokens)
        first = self.next_position
        self.tokens[begin:end] = tokens
        self.positions[begin:end] = np.arange(first, first + len(tokens))
        self.generated[begin:end] = generated
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget every token from row `length` on."""
        self.length = min(self.length, length)
        self.transcript = self.transcript and self.transcript.until(self.length)

    def reset(self) -> None:
        """Forget every token."""
        self.truncate(0)
        self.origin = Provenance()
        self.logits = None

    def keep_logits(self, logits: Float32) -> Float32:
        """A copy of the logits after the last token. Read-only: it answers too when the prompt comes again."""
        kept = logits.copy()
        kept.flags.writeable = False
        self.logits = kept
        return kept

    def shared_prefix(self, tokens: IntArray) -> int:
        """How many of `tokens`, from the first on, are already here."""
        limit = min(self.length, len(tokens))
        different = np.flatnonzero(self.tokens[:limit] != tokens[:limit])
        return int(different[0]) if len(different) else limit
