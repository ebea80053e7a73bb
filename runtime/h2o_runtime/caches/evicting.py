"""A cache that evicts: beyond a given number of tokens, it drops the token that attention saw least.

Every layer chooses separately. A new row takes the place of the evicted one, because attention does not
depend on row order. A key keeps the rotation of the position at which it was read. A prompt is read with all
of its rows, one layer at a time. When a layer is done, it chooses the rows to keep: the prompt's last tokens
vote as if they had been generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, append_rows
from h2o_runtime.caches.cache import Cache, KVStore, LayerStore, Rows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import CACHED_CANDIDATE_SCORE

VOTERS = 64  # last tokens of a prompt, whose attention chooses the heavy hitters
HALF = "half"

IntArray = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Rule:
    """Among the tokens before a recent window, the one with the lowest sum of probabilities over all later queries
    is evicted (Zhang et al., 2023, "H2O: Heavy-Hitter Oracle"). New tokens have small sums; the window protects
    them.

    recent: newest tokens that are never evicted; keep: first tokens of the text that are never evicted."""

    recent: int
    keep: int

    def may_go(self, tokens: IntArray, end: int) -> NDArray[np.bool_]:
        """For `tokens` of any shape, positions in a text of length `end`: whether each may be evicted."""
        return (tokens >= self.keep) & (tokens < end - self.recent)

    def victims(self, tokens: IntArray, score: Float64, end: int) -> IntArray:
        """The row to evict in each layer, for tokens [layers, rows] → [layers]. Of equals the older token is
        evicted.

        Raises ValueError for scores that are not numbers, and if all tokens are protected.
        """
        free = self.may_go(tokens, end)
        if np.isnan(score).any() or not free.any(axis=1).all():
            raise ValueError("no token can go: a score is not a number, or all are protected")
        lowest = np.where(free, score, np.inf)
        least = lowest == lowest.min(axis=1, keepdims=True)
        oldest: IntArray = np.where(free & least, tokens, np.iinfo(np.int64).max).argmin(axis=1)
        return oldest

    def survivors(self, score: Float64, rows: int) -> IntArray:
        """Choose `rows` of a text's tokens 0, 1, 2, … [n] to keep, rising. Of equals the newer one stays."""
        n = len(score)
        ranked = np.where(self.may_go(np.arange(n), n), score, np.inf)
        order = np.lexsort((np.arange(n), ranked))  # the first to be evicted comes first
        return np.sort(order[n - rows :]) if n > rows else np.arange(n)


class Memory:
    """The tokens that every layer keeps.

    tokens  int64 [layers, rows]: the position in the text of each row's token
    score   float64 [layers, rows]: its probabilities, summed over queries and heads
    """

    def __init__(self, layers: int, rows: int, rule: Rule) -> None:
        self.rows, self.rule = rows, rule
        self.tokens: IntArray = np.zeros((layers, rows), np.int64)
        self.score: Float64 = np.zeros((layers, rows), np.float64)

    def read(self, layer: int, score: Float64) -> IntArray:
        """Start with a text of len(score) tokens → the tokens to keep, rising: row i holds the i-th."""
        chosen = self.rule.survivors(score, self.rows)
        self.tokens[layer, : len(chosen)] = chosen
        self.score[layer, : len(chosen)] = score[chosen]
        return chosen

    def place(self, token: int) -> IntArray:
        """The row of the text's next token in every layer → [layers]."""
        layers = np.arange(len(self.tokens))
        if token < self.rows:
            row = np.full(len(layers), token)
        else:
            row = self.rule.victims(self.tokens, self.score, token)
        self.tokens[layers, row], self.score[layers, row] = token, 0.0
        return row

    def saw(self, probabilities: NDArray[np.float32]) -> None:
        """Add what the newest token's queries saw of the first rows, [layers, some rows]."""
        self.score[:, : probabilities.shape[1]] += probabilities


@dataclass(frozen=True)
class Evicting(Cache):
    """Memory is reserved for `tokens` rows per layer, and for one layer of the whole context."""

    name: ClassVar[str] = "evicting"
    title: ClassVar[str] = "evicting"
    keeps_distances: ClassVar[bool] = False

    tokens: int = option(
        4096,
        "Maximum tokens in the cache. Beyond it the token that received the least attention is evicted, and "
        "answers are no longer exact.",
        least=1,
    )
    recent: int | Literal["half"] = option(
        HALF, "Newest tokens that are never evicted; half is half of tokens.", least=0
    )
    keep: int = option(4, "First tokens of the text that are never evicted.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule.recent + self.keep >= self.tokens:
            raise ConfigError(
                f"tokens ({self.tokens}) protects every token: {self.rule.recent} recent and "
                f"{self.keep} first ones; raise tokens, or lower recent or keep",
                field="tokens",
            )

    @property
    def rule(self) -> Rule:
        recent = self.tokens // 2 if self.recent == HALF else self.recent
        assert isinstance(recent, int)
        return Rule(recent, self.keep)

    @property
    def most_rows(self) -> int:
        return self.tokens

    def new_store(
        self, model: ModelSpec, capacity: int, device: Device, providers: Sequence[AttentionProvider]
    ) -> KVStore:
        return EvictingStore(self, model, capacity, device, providers[0])

    def store_bytes(self, model: ModelSpec, context: int) -> int:
        rows = min(self.tokens, context)
        row = 2 * model.kv_heads * model.head_size * np.dtype(model.dtype).itemsize
        votes = 4 * model.kv_heads * (model.layers * rows + context)
        return row * (model.layers * rows + context) + votes


class EvictingStore(KVStore):
    """keys[layer], values[layer]: [rows, Hkv, d]; one layer's whole prompt; on the host, the tokens of the
    rows.
    """

    def __init__(
        self, cache: Evicting, model: ModelSpec, capacity: int, device: Device, provider: AttentionProvider
    ) -> None:
        self.rows = rows = min(cache.tokens, capacity)
        row, dtype, layers = (model.kv_heads, model.head_size), np.dtype(model.dtype), model.layers
        self.device, self.provider = device, provider
        self.cached = [{name: device.empty((rows, *row), dtype) for name in "kv"} for _ in range(layers)]
        self.prompt = {name: device.empty((capacity, *row), dtype) for name in "kv"}
        self.step = {name: device.empty((1, *row), dtype) for name in "kv"}
        self.seen = device.zeros((layers, rows, model.kv_heads), np.float32)  # by the last step
        self.votes = device.empty((capacity, model.kv_heads), np.float32)
        self.nobody = (
            device.empty((model.kv_heads, 0), np.int32),
            device.empty((model.kv_heads, 0), np.float32),
        )
        self.places = device.zeros((layers + 1,), np.int64)  # each layer's row of the step; the length
        self.memory = Memory(layers, rows, cache.rule)
        self._unread = 0  # rows of `seen` not yet added to the scores
        self._layers = [_Layer(self, layer) for layer in range(layers)]

    def open(self, layer: int) -> _Layer:
        return self._layers[layer]

    def before_step(self, past: int, rows: int = 1) -> None:
        self.settle()
        places, length = self.memory.place(past), min(past + 1, self.rows)
        self.device.upload(np.append(places, length), self.places)
        self._unread = length

    def settle(self) -> None:
        """Add what the last step's attention saw to the scores."""
        if self._unread:
            self.memory.saw(self.device.download(self.seen)[:, : self._unread].sum(axis=2))
            self._unread = 0

    @property
    def nbytes(self) -> int:
        rows = [array for layer in (*self.cached, self.prompt) for array in layer.values()]
        return sum(array.nbytes for array in (*rows, self.seen, self.votes))


class _Layer(LayerStore):
    """Open for a prompt, from the first `target` of several rows until closed."""

    def __init__(self, store: EvictingStore, layer: int) -> None:
        self._store, self._layer = store, layer
        self._cached = store.cached[layer]
        self._place = store.places[layer : layer + 1]
        self._seen = store.seen[layer]
        self._begin = self._end = 0  # of the prompt's new rows
        self._queries: Tensor | None = None

    def __enter__(self) -> _Layer:
        self._end = 0
        self._queries = None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._end and kind is None:
            self._keep()
        self._end = 0

    def target(self, rows: Rows) -> dict[str, Tensor]:
        store = self._store
        if rows.at is not None:
            return store.step
        if not self._end:
            self._begin = rows.start
            for name, cached in self._cached.items():
                store.device.copy(cached[: rows.start], store.prompt[name][: rows.start])
        self._end = max(self._end, rows.stop)
        return {name: array[rows.start : rows.stop] for name, array in store.prompt.items()}

    def commit(self, rows: Rows) -> None:
        if rows.at is not None:
            step = self._store.step
            append_rows(self._store.provider, step["k"], step["v"], self._place, self.view(1))

    def view(self, length: int | Tensor) -> KV:
        if self._end:
            return KV(**self._store.prompt, length=length)
        if isinstance(length, int):
            length = min(length, self._store.rows)
        else:
            length = self._store.places[len(self._store.cached) :]
        return KV(**self._cached, length=length, seen=self._seen)

    def attended(self, q: Tensor) -> None:
        self._queries = q

    def _keep(self) -> None:
        """Choose the rows of the prompt to keep. Waits for the device: the next layer overwrites the prompt's
        rows.
        """
        store = self._store
        store.settle()
        chosen = store.memory.read(self._layer, self._score())
        for name, cached in self._cached.items():
            prompt = store.prompt[name][: self._end]
            if len(chosen) == self._end:
                store.device.copy(prompt, cached[: self._end])
            else:
                store.device.upload(store.device.download(prompt)[chosen], cached[: len(chosen)])
        store.device.synchronize()

    def _score(self) -> Float64:
        """The score of every token so far: its own sum and the votes of the prompt's last tokens."""
        store, end = self._store, self._end
        score: Float64 = np.zeros(end)
        score[: self._begin] = store.memory.score[self._layer, : self._begin]
        if self._queries is not None:
            n = len(self._queries)
            window, votes = self._queries[max(n - VOTERS, 0) : n], store.votes[:end]
            keys = store.prompt["k"][:end]
            memory, no_votes = store.nobody
            store.provider.run(
                CACHED_CANDIDATE_SCORE,
                self.view(end),
                q_window=window,
                k=keys,
                memory=memory,
                score_mem=no_votes,
                score_chunk=votes,
            )
            score += store.device.download(votes).sum(axis=1)
        return score
