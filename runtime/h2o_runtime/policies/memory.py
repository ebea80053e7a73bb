"""What the h2o policy remembers: scores, the current memory sets, and those of every chunk boundary."""

from __future__ import annotations

import numpy as np

from h2o_runtime.attention.base import Float32, Int32, PartialSoftmax, Tensor


class LayerMemory:
    """One layer's scores [cap, Hs] and memory sets. Views into the store's arrays; nothing is allocated here."""

    def __init__(self, store: MemoryStore, layer: int) -> None:
        self.score: Float32 = store.score[layer]  # [cap, Hs]
        self._fresh_score: Float32 = store.fresh_score[layer]  # [cap, Hs]
        self._sets: Int32 = store.sets[layer]  # [boundaries, Hs, M]
        self._set_scores: Float32 = store.set_scores[layer]  # [boundaries, Hs, M]
        self._last: Int32 = store.last[layer]  # [Hs, M]
        self._store = store

    @property
    def current(self) -> Int32:
        """Memory that the next chunk sees, int32 [Hs, size]."""
        return self._store.current

    @property
    def size(self) -> int:
        return int(self._store.current.shape[1])

    @property
    def colsum(self) -> Float32:
        """Scratch of the current memory's shape, float32 [Hs, size]."""
        return self._store.colsum_scratch(self.size)

    @property
    def scratch(self) -> Int32:
        """Where the next memory set is to be written, int32 [Hs, M]; `accept` makes it current."""
        return self._store.next_set

    def clear(self) -> None:
        """Start with an empty past."""
        self._store.set_current(0)
        self._store.has_last = False

    def hold_all(self, length: int) -> None:
        """Remember every one of the first `length` tokens, at most M."""
        self._store.set_current(length)
        self.current[:] = np.arange(length, dtype=np.int32)

    def accept(self, boundary: int, fresh: bool) -> None:
        """Make `scratch` the memory seen from position `boundary` on; a fresh run's can be gone back to."""
        store = self._store
        store.set_current(store.next_set.shape[1])
        self.current[:] = store.next_set
        self._last[:] = store.next_set
        store.has_last = True
        if fresh:
            index = boundary // store.chunk_size - 1
            self._sets[index] = store.next_set
            self._set_scores[index] = self.score[store.next_set.T, store.head_index].T

    def keep_scores(self, length: int) -> None:
        """Note the scores of a fresh run's `length` tokens: a conversation's later turns change them."""
        self._fresh_score[:length] = self.score[:length]

    def restore(self, boundary: int) -> None:
        """Go back to the memory set and all scores as they were at `boundary`."""
        store = self._store
        index = boundary // store.chunk_size - 1
        store.next_set[:] = self._sets[index]
        self.score[:boundary] = self._fresh_score[:boundary]  # of what was forgotten before, for good
        self.score[store.next_set.T, store.head_index] = self._set_scores[index].T
        self.accept(boundary, fresh=False)

    def add_to_score(self, colsum: Float32) -> None:
        """score(j) += colsum for j in the current memory; colsum [Hs, size]."""
        self.score[self.current.T, self._store.head_index] += colsum.T

    def replace_score(self, votes: Float32) -> None:
        self.score[self.current.T, self._store.head_index] = votes.T

    def clear_decoded(self, length: int, generated: np.ndarray) -> None:
        """Decode keeps no scores: those of the tokens that it appended last, up to `length`, begin at 0."""
        prompts = np.flatnonzero(~generated[:length])
        self.score[prompts[-1] + 1 if len(prompts) else 0 : length] = 0.0

    def history_score(self, length: int, generated: np.ndarray, local: int, heavy: int) -> Float32:
        """Scores to select a memory of a conversation by: generated tokens count as local, so they come first.

        Decode keeps no scores. Of the generated tokens before the local window the last `heavy` are put above
        all others. Returns a copy, [length, Hs]: the stored scores stay as they are.
        """
        score = self.score[:length].copy()
        positions = np.flatnonzero(generated[: length - local])
        score[positions[max(len(positions) - heavy, 0) :]] = np.inf
        return score


class MemoryStore:
    """Every layer's memory for one request, allocated once for a capacity and a configuration."""

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        query_heads: int,
        capacity: int,
        chunk_size: int,
        local: int,
        heavy: int,
        batch: int,
    ) -> None:
        size = local + heavy
        boundaries = capacity // chunk_size
        self.chunk_size = chunk_size
        self.score: Float32 = np.zeros((layers, capacity, heads), np.float32)
        self.fresh_score: Float32 = np.zeros_like(self.score)
        self.sets: Int32 = np.zeros((layers, boundaries, heads, size), np.int32)
        self.set_scores: Float32 = np.zeros((layers, boundaries, heads, size), np.float32)
        self.last: Int32 = np.zeros((layers, heads, size), np.int32)
        self.has_last = False
        self.next_set: Int32 = np.zeros((heads, size), np.int32)
        self.head_index = np.arange(heads)
        self._current: Int32 = np.zeros(heads * size, np.int32)
        self._colsum: Float32 = np.zeros(heads * size, np.float32)
        self._m: Float32 = np.zeros((batch, query_heads), np.float32)
        self._l: Float32 = np.zeros((batch, query_heads), np.float32)
        self._layers = [LayerMemory(self, layer) for layer in range(layers)]
        self.set_current(0)

    def layer(self, index: int) -> LayerMemory:
        return self._layers[index]

    def partial(self, o: Tensor) -> PartialSoftmax:
        """State of a logical batch: o is the layer's output itself, m and l are scratch. o [n, Hq, d].

        The scratch grows when a later prompt comes with a larger batch size, once.
        """
        if len(o) > len(self._m):
            self._m, self._l = (np.zeros((len(o), o.shape[1]), np.float32) for _ in range(2))
        return PartialSoftmax(o, self._m[: len(o)], self._l[: len(o)])

    def set_current(self, size: int) -> None:
        heads = len(self.head_index)
        self.current: Int32 = self._current[: heads * size].reshape(heads, size)

    def colsum_scratch(self, size: int) -> Float32:
        heads = len(self.head_index)
        return self._colsum[: heads * size].reshape(heads, size)

    @property
    def nbytes(self) -> int:
        return 2 * self.score.nbytes + self.sets.nbytes + self.set_scores.nbytes + self.last.nbytes
