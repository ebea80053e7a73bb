"""A live session: its tokens, their keys and values, and the policies' state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches import KVStore
from h2o_runtime.caches.reuse import Provenance, same_arithmetic
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.layer_states import session_store
from h2o_runtime.sessions.spec import SessionSpec
from h2o_runtime.sessions.transcript import Transcript

Float32 = NDArray[np.float32]
IntArray = NDArray[np.int64]


class TokenRows:
    """The tokens whose keys and values are kept, one a row of the cache.

    tokens     int64 [cap], of which the first `length` are valid
    positions  int64 [cap]: where in the text each stood. Rows are counted as they are kept, positions as they
               were read
    generated  bool [cap], true where decode put the token, not a prompt
    """

    def __init__(self, capacity: int) -> None:
        self.tokens: IntArray = np.zeros(capacity, np.int64)
        self.positions: IntArray = np.zeros(capacity, np.int64)
        self.generated: NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self.length = 0

    @property
    def known(self) -> IntArray:
        """The valid tokens, int64 [length]."""
        return self.tokens[: self.length]

    @property
    def next_position(self) -> int:
        """The position of the next token in the text."""
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
        """Drop every token from row `length` on."""
        self.length = min(self.length, length)


class HiddenRows:
    """Of the rows that the last call of the head computed, at most `most`."""

    def __init__(self, most: int, size: int) -> None:
        self._kept = np.zeros((most, size), np.float32)
        self._first = self._stop = 0

    def put(self, first: int, rows: NDArray[np.float32]) -> None:
        """They are rows `first` … of the session, [n, D]."""
        self._kept[: len(rows)] = rows
        self._first, self._stop = first, first + len(rows)

    def of(self, row: int) -> NDArray[np.float32] | None:
        """[D]; None if it is not known."""
        return self._kept[row - self._first] if self._first <= row < self._stop else None

    def truncate(self, rows: int) -> None:
        """Rows from `rows` on are of another text from now on."""
        self._stop = min(self._stop, rows)

    @property
    def first(self) -> int:
        """The first row that is known, if any."""
        return self._first


class Session(TokenRows):
    """Everything that an answer depends on, except the weights. Several may share one set of weights.

    store          keys and values of every layer
    origin         how the rows came about
    logits         float32 [vocab] after the last token, where they are at hand
    hidden         what the head read of the last rows, where a draft layer reads it too
    transcript     the text that the tokens stand for, where they are a chat
    prefill_state  of the policy in `state_policy`
    decode_state   of the decode policy
    """

    def __init__(self, spec: SessionSpec, spare_bytes: int = 0, beside: Session | None = None) -> None:
        """spare_bytes: room in the store for rows of other sessions, if the store can hold them. beside: a
        session with which to share a store, if possible.
        """
        super().__init__(spec.context)
        self.spec = spec
        model, device = spec.model, spec.device
        store = None if beside is None else beside.store.beside()
        if store is None:
            providers = spec.layers.providers
            place = device.committing() if spec.commit else device
            store = session_store(
                spec.cache, model, spec.context, spare_bytes, place, providers, spec.rows_ahead
            )
        self.store: KVStore = store
        layers = enumerate(zip(model.each_layer, model.policy_layers, strict=True))
        paged = (i for i, (layer, k) in layers if layer.sees_all and spec.decoding.reads_in_pages(k))
        self.store.read_in_pages(frozenset(paged))
        self.origin = Provenance()
        self.logits: Float32 | None = None
        self.hidden = HiddenRows(MOST_STEP_ROWS, model.hidden_size if model.draft else 0)
        self.transcript: Transcript | None = None
        self.prefill_state: Any = None
        self.state_policy: PrefillPolicy[Any] | None = None
        self.decode_state: Any = spec.decoding.new_state(model.under_policies, spec.context, device)

    def decoded(self, tokens: Sequence[int], ahead: int = 0) -> None:
        """Steps have written the rows of these tokens, and perhaps more after them.

        Of the latter, `ahead` may still become tokens; all others are dropped.
        """
        self.logits = None  # first, like the origin: an interrupt may come between any two lines
        self.origin = self.origin.decoded(self.spec.decoding.exact)
        self.append(tokens, generated=True)
        self.store.truncate(self.length + ahead)
        origin = self.origin.evicting(self.length, self.spec.cache.most_rows)
        self.origin = self.store.bounded(origin)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """From a step's begin until its tokens are the session's.

        Where that breaks off, its rows are dropped, and the session knows that states of layers may be lost.
        """
        try:
            yield
        except BaseException:
            self.store.truncate(self.length)
            self.origin = self.store.bounded(self.origin)
            raise

    def truncate(self, length: int) -> None:
        """Drop every token from row `length` on."""
        super().truncate(length)
        self.hidden.truncate(self.length)
        self.store.truncate(length)
        self.transcript = self.transcript and self.transcript.until(self.length)

    def reset(self) -> None:
        """Forget every token."""
        self.truncate(0)
        self.origin = Provenance()
        self.logits = None

    def prepare(self, policy: PrefillPolicy[Any]) -> None:
        """Make the prefill state one of this configuration's policy."""
        if self.state_policy is None or not same_arithmetic(self.state_policy, policy):
            self.drop_state()  # before allocating the new one: a small device has no room for two
            self.prefill_state = policy.new_state(
                self.spec.model.under_policies, self.spec.context, self.spec.device
            )
            self.state_policy = policy

    def drop_state(self) -> None:
        """Free the prefill state's memory."""
        self.prefill_state = self.state_policy = None

    def keep_logits(self, logits: Float32) -> Float32:
        """A read-only copy of the logits after the last token, which also answers a repeated prompt."""
        copy = logits.copy()
        copy.flags.writeable = False
        self.logits = copy
        return copy
