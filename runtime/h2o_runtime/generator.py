"""The public interface of the runtime: load a bundle, prefill a prompt, decode, generate."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.drafter import Drafter
from h2o_runtime.answers.events import (
    GenerationEvent,
    PiecewiseRead,
    Prefilled,
    Run,
    alone,
    read_at_once,
)
from h2o_runtime.answers.request import Prompt, Request, checked_ids
from h2o_runtime.answers.sampling import Sampler, Sampling, log_probabilities
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches.reuse import Prefix, Reuse
from h2o_runtime.config.compatibility import check_eviction, check_policy
from h2o_runtime.config.load_options import LoadOptions, by_fields
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.errors import ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.execution.answer_steps import AnswerSteps, DraftCount, decode_together, sampled_answer
from h2o_runtime.execution.embedding import read_embedding
from h2o_runtime.execution.footprint import Slots, slots_of
from h2o_runtime.execution.model_drafter import draft_sources
from h2o_runtime.execution.prompt_reader import PromptReader
from h2o_runtime.execution.reading import Reading, Watch, read_given
from h2o_runtime.files.outputs import make_private_folder
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import Pooling, Speculation
from h2o_runtime.policies.prefill import PrefillPolicy, PrefillReport, Seen
from h2o_runtime.process import let_go_at_exit
from h2o_runtime.schedule import Span, spans
from h2o_runtime.sessions.pool import SessionPool, SharedPrompt
from h2o_runtime.sessions.session import Float32, IntArray, Session
from h2o_runtime.sessions.spec import SessionSpec

log = logging.getLogger(__name__)


class Generator:
    """A loaded model and a live session: one request at a time. Not thread-safe.

    Create it with `Generator.load`; it can be used as a context manager. `Generator(loaded)` adds a session for
    weights that are already loaded. Such generators run one at a time, in one thread.

    session  the live session: the last prompt and its answer
    pool     waiting sessions
    others   further generators with the same weights and pool, which close with this one
    """

    def __init__(
        self,
        loaded: LoadedModel,
        pool: SessionPool | None = None,
        slots: Slots | None = None,
        beside: Generator | None = None,
    ) -> None:
        """slots: the number of generators with `others`; by default one. beside: the generator to whose `others`
        this one belongs; it uses that one's pool.

        Raises ConfigError for a cache that evicts together with a pool.
        """
        self.loaded = loaded
        self.pool: SessionPool = beside.pool if beside else SessionPool() if pool is None else pool
        cache = self.spec.cache
        check_eviction(cache, self.spec.decoding, pools=self.pool.several)
        if cache.most_rows is not None and beside is None:
            log.warning(
                "beyond %d tokens the cache evicts those that received little attention: answers are not exact",
                cache.most_rows,
            )
        self.slots = slots = slots or Slots(1, 0)  # this one, and `others`
        spare = self.pool.most_bytes + slots.spare_bytes
        self.session: Session = Session(self.spec, spare, beside.session if beside else None)
        self.pool.join(self.session)
        self.others = tuple(Generator(loaded, beside=self) for _ in range(slots.count - 1))
        self.drafts = DraftCount()  # of the last answer
        self._reader = PromptReader(loaded.forward, self.session, self.pool)
        self._owns_weights = False
        let_go_at_exit(self)

    @classmethod
    @by_fields(LoadOptions)
    def load(cls, path: str | Path, options: LoadOptions) -> Generator:
        """Open a bundle and make it ready to run. Keywords are the fields of `LoadOptions`.

        Raises BundleError, BackendError or ConfigError, and OutputError for the folder.
        """
        return cls.open(path, options)

    @classmethod
    def open(cls, path: str | Path, options: LoadOptions) -> Generator:
        """As `load`. The folder is checked first: a large model takes a while to load."""
        if options.folder is not None:
            make_private_folder(Path(options.folder))
        with ExitStack() as on_error:
            loaded = LoadedModel.load(path, options)
            on_error.callback(loaded.close)
            pool = loaded.session_pool(options)
            generator = cls(loaded, pool, slots_of(loaded.spec, options.slots, options.slot_bytes))
            loaded.check_speculation(generator.session)
            loaded.warm_up(generator.session)
            generator._owns_weights = True
            on_error.pop_all()
        return generator

    def close(self) -> None:
        """Write the pool's sessions to its folder; also free the weights if `load` loaded them."""
        self.pool.close(self.session, *(generator.session for generator in self.others))
        if self._owns_weights:
            self.loaded.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spec(self) -> SessionSpec:
        """Device, attention provider, cache and decode policy."""
        return self.loaded.spec

    @property
    def bundle(self) -> Bundle:
        return self.spec.bundle

    @property
    def model(self) -> ModelSpec:
        return self.spec.model

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and answer."""
        return self.spec.context

    def keeps(self, ids: Sequence[int] | IntArray, policy: PrefillPolicy[Any] | None = None) -> int:
        """The number of prompt tokens that the live session already holds. Raises as `prefill`."""
        return self._reader.keeps(*self._checked(ids, policy, None)[:2])

    def finds(self, ids: Sequence[int] | IntArray, policy: PrefillPolicy[Any] | None = None) -> int:
        """As `keeps`, and what a session that waits or is live elsewhere holds. Raises as `prefill`."""
        return self._reader.finds(*self._checked(ids, policy, None)[:2])

    @property
    def default_policy(self) -> PrefillPolicy[Any]:
        """The policy of prompts for which none is chosen."""
        return self.spec.prefill

    # The three main calls: prefill, decode, logprobs

    def prefill(
        self,
        ids: ArrayLike,
        policy: PrefillPolicy[Any] | None = None,
        watch: Watch | None = None,
        reuse: bool = True,
    ) -> Float32:
        """Run a whole prompt, and reuse the rows that the cache holds of it → logits after its last token.

        The logits are float32 [vocab] and read-only. Without `reuse` the prompt runs from its first token.
        `ids` int [N], 1 ≤ N ≤ context. Raises ContextOverflowError, UnknownTokenError, InputError, Cancelled.
        """
        return read_at_once(self._reader.read(*self._checked(ids, policy, watch), reuse))

    def decode(self, token: int) -> Float32:
        """Append one token and attend by the decode policy → logits float32 [vocab]."""
        if not 0 <= token < self.model.vocab_size:
            raise UnknownTokenError(int(token), self.model.vocab_size)
        session = self.session
        if session.length >= self.context:
            raise ContextOverflowError(session.length + 1, self.context)
        if not session.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        with session.stepping():
            logits = self.loaded.forward.decode(token, session)
            session.decoded([token])
        return session.keep_logits(logits)

    def step(self, tokens: Sequence[int]) -> Float32:
        """A decode step of consecutive tokens → logits [rows, vocab]. The caller updates the session's tokens."""
        forward = self.loaded.forward
        if len(tokens) == 1:
            return forward.decode(tokens[0], self.session)[None]
        return next(decode_together(forward, [(self.session, tokens)]))

    def decode_given(self, ids: ArrayLike, watch: Watch | None = None) -> Iterator[tuple[Span, Float32]]:
        """As `decode` of known tokens one after the other, but many at once; equal up to rounding.

        Each token attends to all earlier tokens, whatever the decode policy. Yields rows of `ids` [N] and the
        logits after them, float32 [len(rows), vocab], valid until the next are requested. Raises as `decode`, and
        Cancelled, after which the cache is as before.
        """
        session, watch = self.session, watch or Watch()
        if not session.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        if session.length + len(tokens) > self.context:
            raise ContextOverflowError(session.length + len(tokens), self.context)
        read_given(self.loaded.forward, session, tokens, watch)
        yield from self._every_logits(len(tokens))

    def logprobs(self, ids: ArrayLike, policy: PrefillPolicy[Any] | None = None) -> Float32:
        """log p(ids[t+1] | ids[:t+1]) under the policy, float32 [N - 1]. Starts from an empty cache."""
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        out: Float32 = np.empty(len(tokens) - 1, np.float32)
        for rows, logits in self.each_logits(tokens, policy):
            known = tokens[rows.start + 1 : rows.stop + 1]  # the token after the last one is unknown
            told = log_probabilities(logits[: len(known)])[np.arange(len(known)), known]
            out[rows.start : rows.start + len(known)] = told
        return out

    def each_logits(
        self, ids: ArrayLike, policy: PrefillPolicy[Any] | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Span, Float32]]:
        """Logits after every token of a prompt from an empty cache, as many rows at once as fit.

        Yields rows and float32 [len(rows), vocab], valid until the next are requested. Raises as `prefill`.
        """
        tokens, policy, watch = self._checked(ids, policy, watch)
        self.reset()
        nothing = Reuse(Prefix.NONE, 0)
        reading = Reading(self.loaded.forward, self.session, tokens, policy, nothing, watch)
        for _ in reading.run(needed=0):
            raise AssertionError("a prompt that is read at once has one piece")
        self._reader.was_read(0, reading.read_timer)
        yield from self._every_logits(len(tokens))

    def _every_logits(self, n: int) -> Iterator[tuple[Span, Float32]]:
        """After each of the `n` tokens of the last call."""
        for rows in spans(n, self.loaded.forward.head_rows):
            logits = self.loaded.forward.logits(rows)
            if rows.stop == n:
                self.session.keep_logits(logits[-1])
            yield rows, logits

    def generate(
        self,
        ids: Sequence[int] | IntArray,
        max_new_tokens: int = 64,
        policy: PrefillPolicy[Any] | None = None,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
        watch: Watch | None = None,
        constraint: Constraint | None = None,
        reuse: bool = True,
        speculate: Speculation | None = None,
    ) -> Iterator[GenerationEvent]:
        """Prefill, then sample: yields one Prefilled, one TokenGenerated for each token, and one Finished.

        Ends at a token of `stop_tokens` (not yielded, reason "stop"), after `max_new_tokens` or when the context is
        full (reason "length"). Raises Cancelled between two tokens if `watch` asks for it. `constraint` gives the
        allowed tokens; it must allow some of `stop_tokens` when the answer may end. `reuse` is as in `prefill`.
        `speculate` replaces the load option; tokens do not depend on it.
        """
        if max_new_tokens < 0:
            raise ConfigError(
                f"max_new_tokens must not be negative, but is {max_new_tokens}", field="max_new_tokens"
            )
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        request = Request(
            Prompt(tuple(tokens.tolist())),
            max_new_tokens,
            policy,
            sampling or Sampling(),
            stop_tokens=tuple(stop_tokens),
            reuse=reuse,
            speculate=speculate,
            constraint=constraint,
        )
        return alone(self.run(request, watch), self.step)

    def run(
        self,
        request: Request,
        watch: Watch | None = None,
        prompt_piece: int | None = None,
        shared: SharedPrompt | None = None,
    ) -> Run[GenerationEvent]:
        """As `generate`, for a driver of several runs: pauses where others may run. Stop strings are the caller's.

        prompt_piece: approximate number of prompt tokens between pauses; None reads the prompt at once
        shared: the prompt, if several answers with this policy share it
        """
        self.drafts = DraftCount()  # also of a prompt that is cancelled
        sampler = Sampler(request.sampling, self.model.vocab_size)
        tokens, policy, watch = self._checked(request.prompt.ids, request.prefill, watch)
        logits = yield from self._reader.read(tokens, policy, watch, request.reuse, prompt_piece, shared)
        yield Prefilled(len(tokens), self.reused, self.timer, self._reader.difference)
        sampler.reset(tokens.tolist())
        chosen = self.speculation(request.speculate)[0]
        sources = draft_sources(chosen, self.loaded.forward, self.session, tokens.tolist())
        drafter = Drafter(sources, request.constraint) if sources else None
        steps = AnswerSteps(self.session, drafter, self.loaded.forward.most_rows_of(self.session))
        self.drafts = steps.count
        yield from sampled_answer(self.session, logits, sampler, steps, request, watch)

    def embed(
        self,
        ids: ArrayLike,
        pooling: Pooling | None = None,
        policy: PrefillPolicy[Any] | None = None,
        watch: Watch | None = None,
        prompt_piece: int | None = None,
    ) -> PiecewiseRead[Float32]:
        """Read a prompt from its first token → its embedding, float32 [D]. `pooling` None: the model's own.

        Its length is 1, unless the checkpoint says that the model's embeddings have other lengths.
        The live session is empty afterwards; the pool keeps its earlier content. `prompt_piece` is as in `run`.
        Raises as `prefill`, and ConfigError for a backend without hidden states.
        """
        tokens, policy, watch = self._checked(ids, policy, watch)
        self.loaded.backend.load_hidden()
        self.pool.set_aside(self.session)
        self.session.reset()
        self._reader.reused = 0
        own = self.bundle.manifest.embedding
        return (
            yield from read_embedding(
                self.loaded.forward,
                self.session,
                tokens,
                policy,
                pooling or own.pooling,
                own.normalized,
                watch,
                prompt_piece,
            )
        )

    def speculation(self, asked: Speculation | None = None) -> tuple[Speculation, str | None]:
        """The drafter of an answer, or the reason why there is none. asked: None takes the load option."""
        return self.loaded.speculation(self.session, asked)

    def report(self) -> PrefillReport:
        """The keys that the policy kept of the last prompt's past."""
        session, layers = self.session, self.model.under_policies.layers > 0
        if session.origin.policy is None or session.state_policy is None or not layers:
            return PrefillReport.empty()
        return session.state_policy.report(session.prefill_state, session.origin)

    def seen(self) -> Seen | None:
        """The share of attention that the last prompt's rows saw, if the policy measured it."""
        session = self.session
        if session.origin.policy is None or session.state_policy is None:
            return None
        return session.state_policy.seen_share(session.prefill_state)

    def boundary_memory(self) -> NDArray[np.int32]:
        """Memory sets at every chunk boundary of a prompt run from an empty cache, [layers, boundaries, Hs, M].

        Boundary b comes after chunk b; only boundaries that the last such prompt passed have content.
        """
        return self.report().boundaries.swapaxes(0, 1)

    def reset(self) -> None:
        """Forget every token."""
        self.session.reset()

    @property
    def reused(self) -> int:
        """Tokens that the last prefill found in the cache."""
        return self._reader.reused

    @property
    def timer(self) -> PrefillTimer:
        """The time of the last prefill, by phase. May wait for the device."""
        return self._reader.timer()

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.session.length

    def _checked(
        self, ids: ArrayLike, policy: PrefillPolicy[Any] | None, watch: Watch | None
    ) -> tuple[IntArray, PrefillPolicy[Any], Watch]:
        """A prompt, and how it is read. Raises as `prefill`."""
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        policy = policy or self.default_policy
        check_policy(self.spec.layers, policy, self.spec.device)
        return tokens, policy, watch or Watch()
