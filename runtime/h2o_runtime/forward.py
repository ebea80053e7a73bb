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
from h2o_runtime.manifest import Manifest
from h2o_runtime.policies import LayerCall, PrefillPolicy
from h2o_runtime.reuse import Reuse
from h2o_runtime.schedule import Span, spans
from h2o_runtime.timings import PrefillTimer

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
    """The layer loop over one backend, one attention provider and one cache."""

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        provider: AttentionProvider,
        cache: KVCache,
        activations: Activations,
    ) -> None:
        self.model = manifest.model
        self.parts = [graph.name for graph in manifest.dense_graphs()]  # dense_00 … dense_n
        self.backend = backend
        self.provider = provider
        self.cache = cache
        self.buffers = activations
        self.timer = PrefillTimer()

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
        self.timer = PrefillTimer()
        for layer in range(self.model.layers):
            for rows in spans(n, tile):
                checkpoint(layer / self.model.layers)
                with self.timer.measure("dense"):
                    self.dense(layer, rows, past, tokens)
            call = LayerCall(
                layer=layer,
                q=self.buffers.q[:n],
                o=self.buffers.attention[:n],
                cache=self.cache,
                past=past,
                prefix=reuse.prefix,
                provider=self.provider,
                timer=self.timer,
                checkpoint=lambda done, layer=layer: checkpoint(  # type: ignore[misc]
                    (layer + 0.5 + 0.5 * done / n) / self.model.layers
                ),
            )
            policy.attend(call, state)

    def decode(self, token: IntArray) -> None:
        """Run one token, int64 [1], at the end of the cache, with exact attention."""
        past = self.cache.length
        for layer in range(self.model.layers):
            self.dense(layer, Span(0, 1), past, token)
            self.provider.cached_attention(
                self.buffers.q[:1],
                self.cache.keys[layer],
                self.cache.values[layer],
                past + 1,
                self.buffers.attention[:1],
            )

    def dense(self, layer: int, rows: Span, past: int, tokens: IntArray) -> None:
        """Dense part `layer` on rows of the call, `tokens` [n] being its new tokens; k and v go to the cache."""
        b = self.buffers
        cut = slice(rows.start, rows.stop)
        cached = slice(past + rows.start, past + rows.stop)
        outputs = {
            "residual_out": b.residual(layer)[cut],
            "q": b.q[cut],
            "k": self.cache.keys[layer][cached],
            "v": self.cache.values[layer][cached],
        }
        if layer == 0:
            outputs |= {"cos": b.cos[cut], "sin": b.sin[cut]}
            inputs = {"tokens": tokens[cut], "positions": b.positions[cached]}
        else:
            inputs = {
                "attention": b.attention[cut],
                "residual": b.residual(layer - 1)[cut],
                "cos": b.cos[cut],
                "sin": b.sin[cut],
            }
        self.backend.infer(self.parts[layer], inputs, outputs)

    def logits(self, rows: Span) -> Float32:
        """The head on rows of the call → float32 [len(rows), vocab], valid until the next call."""
        out: Float32 = self.buffers.logits[: len(rows)]
        cut = slice(rows.start, rows.stop)
        inputs = {
            "attention": self.buffers.attention[cut],
            "residual": self.buffers.residual(self.model.layers - 1)[cut],
        }
        self.backend.infer(self.parts[-1], inputs, {"logits": out})
        return out

    @property
    def head_rows(self) -> int:
        """Most rows that `logits` takes at once."""
        return len(self.buffers.logits)
