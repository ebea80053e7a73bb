"""Embeddings: a prompt's hidden states after the final norm, pooled to one vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_runtime.answers.events import PiecewiseRead
from h2o_runtime.backend import HIDDEN
from h2o_runtime.caches.reuse import Prefix, Reuse
from h2o_runtime.execution.forward import Forward
from h2o_runtime.execution.reading import Reading, Watch
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.schedule import Span, spans
from h2o_runtime.sessions.session import Float32, IntArray, Session


def read_embedding(
    forward: Forward,
    session: Session,
    tokens: IntArray,
    policy: PrefillPolicy[Any],
    pooling: Pooling,
    normalized: bool,
    watch: Watch,
    prompt_piece: int | None,
) -> PiecewiseRead[Float32]:
    """Read a prompt into an empty session, in pieces → its embedding, float32 [D]: of length 1 if `normalized`.

    The session is empty again afterwards: no prompt continues an embedded text, and others need the memory. Raises
    Cancelled, ConfigError, BackendError.
    """
    every = pooling is Pooling.MEAN
    reading = Reading(forward, session, tokens, policy, Reuse(Prefix.NONE, 0), watch, prompt_piece)
    total, read = np.zeros(forward.model.hidden_size, np.float64), 0
    try:
        for pause in reading.run(needed=0 if every else -1, earlier=every):
            if every:
                total += _hidden(forward, Span(0, session.length - read)).sum(axis=0, dtype=np.float64)
            read = session.length
            yield pause
        rows = Span(0 if every else reading.last - 1, reading.last)
        total += _hidden(forward, rows).sum(axis=0, dtype=np.float64)
    finally:
        session.reset()
    size = np.linalg.norm(total) if normalized else len(tokens) if every else 1
    embedding: Float32 = (total / size).astype(np.float32)
    return embedding


def _hidden(forward: Forward, rows: Span) -> Float32:
    """The last layer's output after the final norm, on rows of the call → float32 [len(rows), D] on the host."""
    last, found = forward.model.layers - 1, []
    for tile in spans(len(rows), forward.backend.most_rows):
        part = Span(rows.start + tile.start, rows.start + tile.stop)
        cut = slice(part.start, part.stop)
        forward.layers[last].before(last, part)
        inputs = forward.tensors.behind(last, part, forward.buffers.tokens[cut])
        out = forward.buffers.residual(last + 1)[cut]
        forward.backend.infer(HIDDEN, inputs, {HIDDEN: out})
        found.append(np.array(forward.device.download(out), np.float32))
    return np.concatenate(found)
