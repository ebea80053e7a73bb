"""The state of a chain of memory sets: scores, the current sets, and those of every chunk boundary."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider, NextMemory
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.operators import MEMORY_STEP, SCATTER_SCORES
from h2o_runtime.policies.prefill.h2o.scratch import PartialScratch
from h2o_runtime.policies.prefill.policy import SavedState
from h2o_runtime.schedule import Span


class LayerMemory:
    """One layer's scores [cap, Hs] and memory sets. Views into the store's arrays; nothing is allocated here."""

    provider: AttentionProvider  # of the current call

    def __init__(self, store: MemoryStore, layer: int) -> None:
        self.score: Tensor = store.score[layer]  # [cap, Hs]
        self._fresh_score: Tensor = store.fresh_score[layer]  # [cap, Hs]
        self._sets: Tensor = store.sets[layer]  # [boundaries, Hs, M]
        self._set_scores: Tensor = store.set_scores[layer]  # [boundaries, Hs, M]
        self._last: Tensor = store.last[layer]  # [Hs, M]
        self._store = store
        self._device = store.device

    @property
    def current(self) -> Tensor:
        """The memory set of the next chunk, int32 [Hs, size]."""
        return self._store.current

    @property
    def size(self) -> int:
        return int(self._store.current.shape[1])

    @property
    def colsum(self) -> Tensor:
        """Scratch in the shape of the current memory set, float32 [Hs, size]."""
        return self._store.colsum_scratch(self.size)

    def begin_batch(self, chunks: int) -> None:
        """Before this many chunks, whose first one sees `current`."""
        self._store.begin_batch(chunks)

    def seen(self, first: int, stop: int) -> Tensor:
        """The memory sets of chunks first … stop - 1 of the batch, int32 [stop - first, Hs, M]."""
        return self._store.seen(first, stop)

    def clear(self) -> None:
        """Begin a prompt without a past."""
        self._store.set_current(0)
        self._store.has_last = False

    def go_on(self) -> None:
        """The next chunk sees the memory set that was chosen at the end of the last chunk."""
        self._store.set_current(self._last.shape[1])
        self._device.copy(self._last, self.current)

    def hold_all(self, length: int) -> None:
        """Put all of the first `length` tokens, at most M, into the memory set."""
        self._store.set_current(length)
        everything = np.tile(np.arange(length, dtype=np.int32), (len(self.current), 1))
        self._device.upload(everything, self.current)

    def step(self, rows: Span, values: Tensor | None, add: bool, local: int, fresh: bool) -> None:
        """End a chunk and choose the memory set of the next one. With `fresh` the set is also stored for this
        boundary, so that a later prompt can go back to it.

        `values` [Hs, size] become the scores of the chunk's own memory set, unless None.
        """
        store, index = self._store, rows.stop // self._store.chunk_size - 1
        boundary = (self._sets[index], self._set_scores[index]) if fresh else (None, None)
        self._choose(
            self.score, rows, values, add, local, NextMemory(store.next_memory, self._last, *boundary)
        )

    def recall(self, length: int, local: int) -> None:
        """Choose a memory set of a conversation's first `length` tokens."""
        self.clear()
        rows, into = Span(0, length), NextMemory(self._store.next_memory, self._last)
        self._choose(self._history_score(length), rows, None, False, local, into)

    def _choose(
        self,
        score: Tensor,
        rows: Span,
        values: Tensor | None,
        add: bool,
        local: int,
        into: NextMemory,
    ) -> None:
        self.provider.run(
            MEMORY_STEP,
            score=score,
            memory=self.current,
            values=values,
            add=add,
            start=rows.start,
            stop=rows.stop,
            local=local,
            **into.out,
        )
        self._store.advance()
        self._store.has_last = True

    def keep_scores(self, length: int) -> None:
        """Save the scores of a fresh run's `length` tokens, because later turns of the conversation change
        them.
        """
        self._device.copy(self.score[:length], self._fresh_score[:length])

    def restore(self, boundary: int) -> None:
        """Restore the memory set and all scores of `boundary`."""
        store, copy = self._store, self._device.copy
        index = boundary // store.chunk_size - 1
        store.set_current(self._last.shape[1])
        store.has_last = True
        copy(self._sets[index], self.current)
        copy(self._sets[index], self._last)
        # These scores are final for tokens dropped earlier; the scores of the memory set have grown since.
        copy(self._fresh_score[:boundary], self.score[:boundary])
        self.provider.run(
            SCATTER_SCORES, score=self.score, memory=self.current, values=self._set_scores[index], add=False
        )

    def put_scores(self, values: Tensor, add: bool) -> None:
        """Write the scores of the last chunk's memory set, values [Hs, size]: the last chunk has no `step`."""
        if self.size:
            self.provider.run(SCATTER_SCORES, score=self.score, memory=self.current, values=values, add=add)

    def clear_decoded(self, length: int) -> None:
        """Decode computes no scores: the tokens that it appended, up to `length`, get the score 0."""
        self.forget_scores(min(self._store.decoded_from, length), length)

    def forget_scores(self, start: int, stop: int) -> None:
        """Set the scores of rows start … stop - 1 to 0."""
        self._device.clear(self.score[start:stop])

    def _history_score(self, length: int) -> Tensor:
        """Scores from which a conversation's memory set is chosen, [length, Hs]; the stored scores do not change.

        They are the scores of the first `length` tokens, but the store's favourites rank above all others.
        """
        store = self._store
        altered = store.altered[:length]
        self._device.copy(self.score[:length], altered)
        if store.favourites.shape[1]:
            self.provider.run(
                SCATTER_SCORES, score=altered, memory=store.favourites, values=store.highest, add=False
            )
        return altered


class LastTurn:
    """Scores and memory sets before a conversation's last turn, because a repeated turn must get the same
    answer."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._score: Tensor = store.device.zeros(store.score.shape, np.float32)
        self._last: Tensor = store.device.zeros(store.last.shape, np.int32)
        self._had_last = False
        self._rows = 0  # at that time; 0 if nothing is saved

    def begin(self, rows: int) -> None:
        """A turn begins after `rows` rows. If the last turn began there too, restore its state; otherwise save the
        current state.
        """
        store, copy = self._store, self._store.device.copy
        again = rows == self._rows
        for saved, current in zip(self._score, store.score, strict=True):
            copy(*(saved[:rows], current[:rows]) if again else (current[:rows], saved[:rows]))
        copy(*(self._last, store.last) if again else (store.last, self._last))
        if again:
            store.has_last = self._had_last
        self._had_last, self._rows = store.has_last, rows

    def forget(self) -> None:
        """The prompt is not a turn, so the saved state becomes invalid."""
        self._rows = 0

    @property
    def numbers(self) -> dict[str, int]:
        return {"turn_rows": self._rows, "turn_had_last": self._had_last}

    @property
    def arrays(self) -> dict[str, Tensor]:
        scores = {f"turn-score{layer}": score[: self._rows] for layer, score in enumerate(self._score)}
        return scores | {"turn-last": self._last}

    def restore(self, numbers: Mapping[str, int]) -> None:
        self._rows, self._had_last = numbers["turn_rows"], bool(numbers["turn_had_last"])


class MemoryStore(PartialScratch):
    """Every layer's memory sets for one request, allocated once for a capacity and a configuration."""

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
        device: Device,
    ) -> None:
        size = local + heavy
        boundaries = capacity // chunk_size
        self.chunk_size = chunk_size
        super().__init__(batch, query_heads, device)
        self.score: Tensor = device.zeros((layers, capacity, heads), np.float32)
        self.fresh_score: Tensor = device.zeros((layers, capacity, heads), np.float32)
        self.sets: Tensor = device.zeros((layers, boundaries, heads, size), np.int32)
        self.set_scores: Tensor = device.zeros((layers, boundaries, heads, size), np.float32)
        self.last: Tensor = device.zeros((layers, heads, size), np.int32)
        self.has_last = False
        self.decoded_from = capacity  # rows from here on are the tokens that decode appended last
        self.turn = LastTurn(self)
        self._heads = heads
        self._size = size
        # Memory sets one after the other: chunk i of a logical batch sees the i-th.
        self._memories: Tensor = device.zeros((-(-batch // chunk_size) + 1, heads * size), np.int32)
        self._colsum: Tensor = device.zeros((heads * size,), np.float32)
        self.altered: Tensor = device.empty((capacity, heads), np.float32)
        self._favourites: Tensor = device.zeros((heads * heavy,), np.int32)
        self._highest: Tensor = device.empty((heads * heavy,), np.float32)
        device.upload(np.full(heads * heavy, np.inf, np.float32), self._highest)
        self._layers = [LayerMemory(self, layer) for layer in range(layers)]
        self.set_current(0)
        self.favour(np.zeros(0, np.int32))

    def layer(self, index: int, provider: AttentionProvider) -> LayerMemory:
        self._layers[index].provider = provider
        return self._layers[index]

    def saved_state(self, length: int) -> SavedState:
        """For a session of `length` rows."""
        boundaries, arrays = length // self.chunk_size, {"last": self.last, **self.turn.arrays}
        for layer in range(len(self._layers)):
            arrays[f"score{layer}"] = self.score[layer][:length]
            arrays[f"fresh-score{layer}"] = self.fresh_score[layer][:length]
            arrays[f"sets{layer}"] = self.sets[layer][:boundaries]
            arrays[f"set-scores{layer}"] = self.set_scores[layer][:boundaries]
        return SavedState(arrays, {"has_last": self.has_last, **self.turn.numbers})

    def restore(self, numbers: Mapping[str, int]) -> None:
        """The numbers of `saved_state`."""
        self.has_last = bool(numbers["has_last"])
        self.turn.restore(numbers)

    def note_generated(self, generated: NDArray[np.bool_]) -> None:
        """Record which of a conversation's tokens [length] decode appended."""
        prompts = np.flatnonzero(~generated)
        self.decoded_from = int(prompts[-1]) + 1 if len(prompts) else 0

    def favour_generated(self, generated: NDArray[np.bool_], local: int, heavy: int) -> None:
        """Rank generated tokens of a conversation's tokens [length] above all others, in every layer.

        Decode computes no scores, so generated tokens count as local: the last `heavy` of them before the local
        window.
        """
        positions = np.flatnonzero(generated[: len(generated) - local]).astype(np.int32)
        self.favour(positions[max(len(positions) - heavy, 0) :])

    def favour(self, positions: np.ndarray) -> None:
        """Positions int32 [k] that `LayerMemory.recall` ranks above all others."""
        shape = (self._heads, len(positions))
        self.favourites: Tensor = self._favourites[: math.prod(shape)].reshape(*shape)
        self.highest: Tensor = self._highest[: math.prod(shape)].reshape(*shape)
        self.device.upload(np.tile(positions, (self._heads, 1)), self.favourites)

    def set_current(self, size: int, at: int = 0) -> None:
        """`current` becomes the first `size` entries per head of memory set `at`."""
        self._at = at
        self.current: Tensor = self._memories[at][: self._heads * size].reshape(self._heads, size)

    @property
    def next_memory(self) -> Tensor:
        """Where to write the next memory set, int32 [Hs, M]; `advance` makes it current."""
        return self._memories[self._at + 1].reshape(self._heads, self._size)

    def advance(self) -> None:
        self.set_current(self._size, self._at + 1)

    def begin_batch(self, chunks: int) -> None:
        """Move the current memory set to the first place, with room for one more after each chunk.

        If a later prompt has a larger batch size, this allocates more memory, once.
        """
        before, memories = self.current, self._memories
        if len(memories) <= chunks:
            self._memories = self.device.zeros((chunks + 1, memories.shape[1]), np.int32)
        moved = self._at > 0 or self._memories is not memories
        self.set_current(before.shape[1])
        if moved:
            self.device.copy(before, self.current)

    def seen(self, first: int, stop: int) -> Tensor:
        """The memory sets `first` … stop - 1, int32 [stop - first, Hs, M]."""
        return self._memories[first:stop].reshape(stop - first, self._heads, self._size)

    def colsum_scratch(self, size: int) -> Tensor:
        return self._colsum[: self._heads * size].reshape(self._heads, size)

    def last_sets(self) -> NDArray[np.int32]:
        """Memory sets after the last full chunk, int32 [layers, Hs, M]; no layers before there is one."""
        return self.device.download(self.last if self.has_last else self.last[:0]).copy()

    def boundary_sets(self, count: int) -> NDArray[np.int32]:
        """Memory sets after the first `count` chunks, int32 [count, layers, Hs, M], on the host."""
        layers = [self.device.download(sets[:count]).copy() for sets in self.sets]
        return np.stack(layers).swapaxes(0, 1)
