"""One pass of new tokens through the model, layer by layer.

For one layer both phases of attention run over the whole prompt, then the next layer starts: every weight
matrix is applied once, to all tokens at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.activations import Activations
from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.backends.base import Backend
from h2o_runtime.cache import IntArray, KVCache
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.manifest import Manifest
from h2o_runtime.policies import LayerCall, PrefillPolicy
from h2o_runtime.reuse import Reuse
from h2o_runtime.schedule import Span, spans
from h2o_runtime.timings import PrefillTimer, Stopwatch

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Watch:
    """How the caller follows a prefill and stops it.

    progress  called with (done, total) in prompt tokens of work
    cancelled asked at every dense tile, every Phase 2 step and every token; true raises Cancelled
    """

    progress: Callable[[int, int], None] = lambda done, total: None
    cancelled: Callable[[], bool] = lambda: False


class Forward:
    """The layer loop over one backend, one attention provider and one cache, all on one device."""

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        provider: AttentionProvider,
        cache: KVCache,
        activations: Activations,
        device: Device,
    ) -> None:
        self.model = manifest.model
        self.parts = [graph.name for graph in manifest.dense_graphs()]  # dense_00 … dense_n
        self.backend = backend
        self.provider = provider
        self.cache = cache
        self.buffers = activations
        self.device = device
        self.stopwatch: Stopwatch = device.stopwatch()

    def prefill(
        self,
        tokens: IntArray,
        reuse: Reuse,
        policy: PrefillPolicy,
        state: Any,
        tile: int,
        checkpoint: Callable[[float], None],
    ) -> None:
        """Run `tokens` [n], those after the kept ones, through every layer; then the head can run on any row.

        `checkpoint` is called with the done share of the work, from 0 to 1, and may raise. Cache rows are
        written, but the cache's length and tokens are left to the caller, who knows that all went well.
        """
        past, n = reuse.length, len(tokens)
        tiles = list(spans(n, min(tile, self.backend.most_rows)))
        self.give(tokens)
        self.stopwatch = self.device.stopwatch()
        flow = self.device.flow(tiles)
        try:
            for layer in range(self.model.layers):
                for index, rows in enumerate(tiles):
                    checkpoint(layer / self.model.layers)
                    with flow.dense(index), self.stopwatch.measure("dense"):
                        self.dense(layer, rows, past)
                call = LayerCall(
                    layer=layer,
                    q=self.buffers.q[:n],
                    o=self.buffers.attention[:n],
                    cache=self.cache,
                    past=past,
                    prefix=reuse.prefix,
                    provider=self.provider,
                    timer=self.stopwatch,
                    flow=flow,
                    checkpoint=lambda done, layer=layer: checkpoint(  # type: ignore[misc]
                        (layer + 0.5 + 0.5 * done / n) / self.model.layers
                    ),
                )
                policy.attend(call, state)
        finally:
            flow.join()

    def decode(self, token: IntArray) -> Float32:
        """Run one token, int64 [1], at the end of the cache, with exact attention → logits float32 [vocab].

        They are valid until the next call.
        """
        past = self.cache.length
        self.give(token)
        for layer in range(self.model.layers):
            self.dense(layer, Span(0, 1), past)
            self.provider.cached_attention(
                self.buffers.q[:1],
                self.cache.keys[layer],
                self.cache.values[layer],
                past + 1,
                self.buffers.attention[:1],
            )
        logits: Float32 = self.logits(Span(0, 1))[0]
        return logits

    def warm_up(self, rows: int) -> None:
        """Do what a first prompt of `rows` tokens would pay for: on the CPU nothing. The cache must be empty."""

    def give(self, tokens: IntArray) -> None:
        """Put the new tokens [n] of a call where the first dense graph finds them."""
        self.device.upload(tokens, self.buffers.tokens[: len(tokens)])

    def dense(self, layer: int, rows: Span, past: int) -> None:
        """Dense part `layer` on rows of the call, whose first row comes after `past` cached ones."""
        cached = slice(past + rows.start, past + rows.stop)
        self.part(
            layer,
            rows,
            Place(
                tokens=self.buffers.tokens[rows.start : rows.stop],
                positions=self.buffers.positions[cached],
                k=self.cache.keys[layer][cached],
                v=self.cache.values[layer][cached],
            ),
        )

    def part(self, layer: int, rows: Span, place: Place, step: bool = False) -> None:
        """Dense part `layer` on rows of the buffers, with the rest of its inputs and outputs at `place`.

        `step` is `Backend.infer`'s.
        """
        b = self.buffers
        cut = slice(rows.start, rows.stop)
        outputs = {"residual_out": b.residual(layer)[cut], "q": b.q[cut], "k": place.k, "v": place.v}
        if layer == 0:
            outputs |= {"cos": b.cos[cut], "sin": b.sin[cut]}
            inputs = {"tokens": place.tokens, "positions": place.positions}
        else:
            inputs = {
                "attention": b.attention[cut],
                "residual": b.residual(layer - 1)[cut],
                "cos": b.cos[cut],
                "sin": b.sin[cut],
            }
        self.backend.infer(self.parts[layer], inputs, outputs, step)

    def head(self, rows: Span, step: bool = False) -> Tensor:
        """The head on rows of the call → float32 [len(rows), vocab] on the device, valid until the next call."""
        out = self.buffers.logits[: len(rows)]
        cut = slice(rows.start, rows.stop)
        inputs = {
            "attention": self.buffers.attention[cut],
            "residual": self.buffers.residual(self.model.layers - 1)[cut],
        }
        self.backend.infer(self.parts[-1], inputs, {"logits": out}, step)
        return out

    def logits(self, rows: Span) -> Float32:
        """As `head`, on the host."""
        logits: Float32 = self.device.download(self.head(rows))
        return logits

    @property
    def timer(self) -> PrefillTimer:
        """Where the time of the last prefill went."""
        return self.stopwatch.read()

    @property
    def head_rows(self) -> int:
        """Most rows that `logits` takes at once."""
        return min(len(self.buffers.logits), self.backend.most_rows)


@dataclass(frozen=True)
class Place:
    """What differs between prefill and decode: tokens and positions int64 [n]; k and v [n, Hkv, d] are outputs."""

    tokens: Tensor
    positions: Tensor
    k: Tensor
    v: Tensor
