"""One pass of new tokens through the model, layer by layer.

In each layer both phases of attention run over the whole prompt before the next layer starts. So every weight
matrix is applied once, to all tokens at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.backend import Backend
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import LayerStore, Rows
from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices import Device, Flow, Tensor
from h2o_runtime.devices.timings import DENSE, Stopwatch
from h2o_runtime.execution.bound_step import DenseTensors, SessionRows, StepBinder
from h2o_runtime.execution.draft_layer import DraftLayer
from h2o_runtime.execution.step_rows import RowsStep, StepGraph, StepRow
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import LiveLayers
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.policies.decode import DecodePolicy, StepCall
from h2o_runtime.policies.prefill import WHOLE, LayerCall, PrefillPolicy, PromptCall, PromptPiece
from h2o_runtime.schedule import Span, spans
from h2o_runtime.sessions.session import IntArray, Session

Float32 = NDArray[np.float32]

WARM_UP_ROWS = 4  # of a prompt whose only purpose is to be the first: enough for work of every thread


@dataclass(frozen=True)
class PromptRun:
    """A prompt on its way through the layers.

    tokens      int64 [n]: those after the session's, which are `prefix` to them
    session     holds the policy's state, and the tokens before these
    checkpoint  called with the done share of the work, from 0 to 1; may raise
    needed      the first row whose logits are asked for
    prompt_piece  where the tokens stand in a prompt that is read in several runs
    """

    tokens: IntArray
    prefix: Prefix
    policy: PrefillPolicy[Any]
    session: Session
    checkpoint: Callable[[float], None] = lambda share: None
    needed: int = 0
    prompt_piece: PromptPiece = WHOLE


class Forward:
    """The layer loop over one backend and the layers' kinds on one device, for any session.

    no_graph_because  why `graph` has none for rows that stay where they are
    drafting          the draft layer, if it is loaded
    """

    no_graph_because = "without native kernels and products a row depends on those beside it"

    def __init__(
        self,
        manifest: Manifest,
        backend: Backend,
        layers: LiveLayers,
        decoding: DecodePolicy[Any],
        activations: Activations,
        device: Device,
    ) -> None:
        self.model = backend.model
        self._policy_layers = self.model.policy_layers
        self.dense_graphs = [graph.name for graph in manifest.dense_graphs()]  # dense_00 … dense_n
        self.backend = backend
        self.layers = layers
        self.decoding = decoding
        self.buffers = activations
        self.device = device
        self.stopwatch: Stopwatch = device.stopwatch(())
        # Steps have fixed addresses, so that their calls are bound once and can be recorded.
        self._token = device.empty((1,), np.int64)
        self._where = device.empty((3,), np.int64)  # position, row, length
        self.tensors = DenseTensors(self.model, activations)
        binding = (self.dense_graphs, backend, layers, self.tensors)
        self.binder = StepBinder(*binding, self._token, self._where)
        self.drafting: DraftLayer | None = None
        self._session_rows = SessionRows(*binding, activations, device)
        self._graph: StepGraph | None = None
        self._tiles: list[Span] = []
        self._flow: Flow = device.flow(self._tiles)

    def prefill(self, prompt: PromptRun) -> None:
        """Run the prompt's new tokens through every layer. Then the head can run on its rows from
        `prompt.needed` on.

        Writes cache rows; the caller updates the session's tokens after success.
        """
        self.begin(prompt)
        try:
            for layer in range(self.model.layers):
                self.layer(layer, prompt)
        finally:
            self._flow.join()

    def begin(self, prompt: PromptRun) -> None:
        """Before the prompt's first layer."""
        session, n = prompt.session, len(prompt.tokens)
        limit = min(prompt.policy.batch_size, self.backend.most_rows, session.store.at_once or n)
        self._tiles = list(spans(n, limit))
        self.give(prompt.tokens)
        self.stopwatch = self.device.stopwatch(prompt.policy.phases)
        past = session.length
        self.layers.settle(prompt.policy, past, n)
        call = PromptCall(n, past, prompt.prefix, session.generated[:past], prompt.prompt_piece)
        session.store.before_prompt(past, past + n, prompt.policy.lasting_rows(past + n))
        prompt.policy.start_prompt(call, session.prefill_state)
        self._flow = self.device.flow(self._tiles)

    def layer(self, layer: int, prompt: PromptRun) -> None:
        """One layer of a prompt: dense graph, cache rows, attention."""
        session, n = prompt.session, len(prompt.tokens)
        with session.store.open(layer) as cache:
            if cache.in_turns:
                self._flow.join()  # the first dense graph reads what attention of the layer before wrote
                for tile in self._tiles:
                    flow = self.device.flow([tile])
                    self._attend(layer, prompt, cache, [tile], flow)
                    flow.join()  # the next dense graph may write where attention read
            else:
                self._attend(layer, prompt, cache, self._tiles, self._flow)
            # Only now has the attention provider waited for all rows.
            rows = Rows(session.length, session.length + n)
            policy_layer, provider = self._policy_layers[layer], self.layers.providers[layer]
            decoding = self.layers[layer].decoding(self.decoding)
            decoding.observe(policy_layer, cache.view(rows.stop), rows, provider, session.decode_state)
            cache.attended(self.buffers.q[layer][:n])

    def _attend(
        self, layer: int, prompt: PromptRun, cache: LayerStore, tiles: Sequence[Span], flow: Flow
    ) -> None:
        """Dense graph and attention of some of a prompt's rows."""
        session = prompt.session

        def dense(tile: int) -> None:
            prompt.checkpoint(layer / self.model.layers)
            with self.stopwatch.measure(DENSE):
                self.dense(layer, tiles[tile], session, cache)

        with flow.layer(dense):
            call = self._layer_call(layer, prompt, cache, Span(tiles[0].start, tiles[-1].stop), flow)
            self.layers[layer].attend(prompt.policy, call, session.prefill_state)

    def decode(self, token: int, session: Session) -> Float32:
        """Run one token at the end of the cache → logits float32 [vocab], valid until the next call."""
        graph = self.graph(session)
        if graph is not None:
            return graph.run([StepRow(token, session)])[0]  # type: ignore[no-any-return]
        with session.stepping():
            return self.decode_by_layers(token, session)

    def decode_by_layers(self, token: int, session: Session) -> Float32:
        """`decode` where there is no graph of the step."""
        past = session.length
        self.give_step(token, session)
        rows = Rows(past, past + 1, at=self._where[1:2])
        logits: Float32 = self.device.download(self.step(rows, past + 1, session))[0]
        self.keep_hidden(session, past, 1)
        return logits

    def decode_rows(self, rows: Sequence[StepRow]) -> Float32:
        """One step of R rows, 1 … `most_step_rows` → logits float32 [R, vocab], valid until the next call.

        A row's logits equal those of `decode`: they depend on its own session alone. On a CPU the bits are the
        same; products on a GPU may round otherwise where a step has another number of rows. Rows of a
        session are consecutive tokens, in order; each sees those before it. Only a session without
        `one_row_because` may have more than one. Writes cache rows; the caller updates the sessions' tokens, and
        tells each session with `Session.decoded` which of its rows stay.
        """
        graph = self.graph(rows[0].session)
        if graph is not None:
            return graph.run(rows)
        sessions: dict[Session, list[int]] = {}
        for i, row in enumerate(rows):
            sessions.setdefault(row.session, []).append(i)
        logits = np.empty((len(rows), self.model.vocab_size), np.float32)
        for session, own in sessions.items():
            tokens = [rows[i].token for i in own]
            alone = len(tokens) == 1
            logits[own] = self.decode(tokens[0], session) if alone else self._by_layers(tokens, session)
        return logits

    def _by_layers(self, tokens: Sequence[int], session: Session) -> Float32:
        """Consecutive tokens of one session: see `SessionRows`."""
        with session.stepping():
            logits: Float32 = self.device.download(self._session_rows.run(tokens, session))
            self.keep_hidden(session, session.length, len(tokens))
            return logits

    def one_row_because(self, session: Session) -> str | None:
        """Why a step cannot have several rows of the session and drop its last ones; None: it can."""
        if not self.decoding.full_attention_only:
            return f"the decode policy {self.decoding.name} remembers every row"
        if reason := self.layers.one_row_because:
            return reason
        if session.store.fixed_rows() is None:
            return "the cache does not leave rows where they are"
        if self.graph(session) is None and not self.rows_by_layers:
            return self.no_graph_because
        if session.store.step_rows == 1:
            return "the model was loaded with `speculate=off`, and keeps no states to take drafts back to"
        return None

    @property
    def rows_by_layers(self) -> bool:
        """Whether a step of several rows of a session can go layer by layer, with the bits of steps of one."""
        return self.backend.native_products and self.layers.native

    def most_rows_of(self, session: Session) -> int:
        """The most rows of one session in a step."""
        return min(self.most_step_rows, session.store.step_rows or MOST_STEP_ROWS)

    @property
    def most_step_rows(self) -> int:
        """The most rows of `decode_rows`."""
        return min(MOST_STEP_ROWS, len(self.buffers.logits), self.backend.step_rows)

    def graph(self, session: Session) -> RowsStep | None:
        """The step as one graph: possible if it is only exact attention with our own kernels, to rows that
        never move.
        """
        if self._graph is None:
            fusible = self.layers.in_step_graph and self.decoding.full_attention_only
            if not fusible or session.store.fixed_rows() is None:
                return None
            shapes = [spec.attention(self.model.dtype) for spec in self.model.each_layer]
            self._graph = StepGraph(self.backend, shapes, self.buffers.logits)
        return self._graph if self._graph.takes(session) else None

    def give_step(self, token: int, session: Session) -> None:
        """Write a step's token, position, row and length where the step reads them."""
        past = session.length
        session.store.before_step(past)
        self.device.write_integers(self._token, [token])
        self.device.write_integers(self._where, [session.next_position, past, past + 1])

    def step(self, rows: Rows, length: int | Tensor, session: Session) -> Tensor:
        """The decode loop: one token through every layer → logits float32 [1, vocab] on the device.

        `length` is the cache's length including the step's row; on the device if a recording reads it.
        """
        bound, state = self.binder.step(session), session.decode_state
        for layer, bound_layer in enumerate(bound.layers):
            with session.store.open(layer) as cache:
                bound_layer.run()
                decoding = self.layers[layer].decoding(self.decoding)
                policy_layer = self._policy_layers[layer]
                new = cache.uncommitted(rows) if decoding.appends else None
                if new is None:
                    cache.commit(rows)
                kv = cache.view(length)
                decoding.observe(policy_layer, kv, rows, bound_layer.provider, state)
                call = StepCall(
                    policy_layer, bound_layer.q, bound_layer.o, kv, bound_layer.provider, new, cache.fetch
                )
                decoding.attend(call, state)
        bound.head()
        return self.buffers.logits[:1]

    def warm_up(self, policy: PrefillPolicy[Any], session: Session) -> None:
        """Do the one-time work of a first prompt under a policy, and of a first step. The session must be empty.

        A few arbitrary tokens go through all layers: threads start, and each layer's rows get their first pages
        from the system. A virtual machine may get these from its host only then, at up to 2 ms a MiB.
        """
        self._read_arbitrary(min(WARM_UP_ROWS, len(self.buffers.tokens)), policy, session)
        self.graph(session)

    def _read_arbitrary(self, n: int, policy: PrefillPolicy[Any], session: Session) -> None:
        """Read a prompt of n tokens, as it would be read, and forget it."""
        session.prepare(policy)
        self.prefill(PromptRun(np.zeros(n, np.int64), Prefix.NONE, policy, session))
        self.head(Span(0, min(n, self.head_rows)))
        self.device.synchronize()
        session.reset()

    def release(self) -> None:
        """Drop all bindings, and the memory that they reference."""
        self.binder.clear()
        self._session_rows.clear()
        self._graph = None

    def give(self, tokens: IntArray) -> None:
        """Write a call's new tokens [n] where the first dense graph reads them."""
        self.device.upload(tokens, self.buffers.tokens[: len(tokens)])

    def dense(self, layer: int, tile: Span, session: Session, cache: LayerStore) -> None:
        """Run dense graph `layer` on rows of the call's new tokens; their keys and values go into the
        cache.
        """
        past, first = session.length, session.next_position
        rows = Rows(past + tile.start, past + tile.stop)
        tokens = self.buffers.tokens[tile.start : tile.stop]
        positions = self.buffers.positions[first + tile.start : first + tile.stop]
        target = cache.target(rows)
        if layer:
            self.layers[layer - 1].before(layer - 1, tile)
        tensors = self.tensors.of_layer(layer, tile, tokens, positions, target, cache.given())
        self.backend.infer(self.dense_graphs[layer], *tensors)
        cache.commit(rows)
        self.layers[layer].after(layer, tile, past, cache, target, self._flow)

    def head(self, rows: Span) -> Tensor:
        """The head on rows of the call → float32 [len(rows), vocab] on the device, valid until the next call."""
        last = self.model.layers - 1
        self.layers[last].before(last, rows)
        tokens = self.buffers.tokens[rows.start : rows.stop]
        self.backend.infer(self.dense_graphs[-1], *self.tensors.of_head(rows, tokens))
        return self.buffers.logits[: len(rows)]

    def logits(self, rows: Span) -> Float32:
        """As `head`, on the host."""
        logits: Float32 = self.device.download(self.head(rows))
        return logits

    def keep_hidden(self, session: Session, first: int, rows: int) -> None:
        """What the head has just read of these rows, for the draft layer if it is loaded."""
        if self.drafting is not None:
            assert self.buffers.hidden is not None
            session.hidden.put(first, self.buffers.hidden[:rows])

    @property
    def answered_rows(self) -> int:
        """Rows at a prompt's end on which the head runs: more than one if a draft layer reads them too."""
        return 1 if self.drafting is None else min(MOST_STEP_ROWS, self.head_rows)

    @property
    def head_rows(self) -> int:
        """The most rows of one `logits` call."""
        return min(len(self.buffers.logits), self.backend.most_rows)

    def _layer_call(
        self, layer: int, prompt: PromptRun, cache: LayerStore, tokens: Span, flow: Flow
    ) -> LayerCall:
        """Of some of the prompt's tokens."""
        n, layers, past = len(prompt.tokens), self.model.layers, prompt.session.length
        rows = Rows(past + tokens.start, past + tokens.stop)
        new, cut = cache.fresh(rows), slice(tokens.start, tokens.stop)
        call = LayerCall(
            layer=self._policy_layers[layer],
            q=self.buffers.q[layer][cut],
            o=self.buffers.attention[layer][cut],
            k=new.get("k"),
            v=new.get("v", new.get("k")),
            kv=cache.view(rows.stop),
            past=rows.start,
            prefix=prompt.prefix,
            provider=self.layers.providers[layer],
            timer=self.stopwatch,
            flow=flow,
            needed=max(prompt.needed - tokens.start, 0) if layer == layers - 1 else 0,
            checkpoint=lambda done: prompt.checkpoint(
                (layer + 0.5 + 0.5 * (tokens.start + done) / n) / layers
            ),
            prompt_piece=prompt.prompt_piece,
        )
        return self.layers[layer].call(call)
