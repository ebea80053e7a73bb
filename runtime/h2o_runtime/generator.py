"""The public face of the runtime: load a bundle, prefill a prompt, decode, generate."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.events import Finished, GenerationEvent, Prefilled, TokenGenerated
from h2o_runtime.answers.lookup import Drafter
from h2o_runtime.answers.sampling import Sampler, Sampling
from h2o_runtime.answers.token_ids import checked_ids
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse, plan_reuse, same_arithmetic, shared_prefix
from h2o_runtime.config.compatibility import check_forgetting, check_policy
from h2o_runtime.config.load_options import LoadOptions, by_fields
from h2o_runtime.config.prefill import PrefillConfig
from h2o_runtime.devices.timings import PrefillTimer
from h2o_runtime.errors import Cancelled, ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.execution.answer_steps import AnswerSteps, DraftCount
from h2o_runtime.execution.forward import PromptRun, Watch
from h2o_runtime.loaded_model import LoadedModel
from h2o_runtime.model import ModelSpec
from h2o_runtime.names import Speculation
from h2o_runtime.policies.prefill import PrefillReport, Seen
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.process import let_go_at_exit
from h2o_runtime.schedule import Span, spans
from h2o_runtime.sessions.folder import SessionFolder
from h2o_runtime.sessions.pool import SessionPool
from h2o_runtime.sessions.session import Float32, IntArray, Session
from h2o_runtime.sessions.spec import SessionSpec

log = logging.getLogger(__name__)

Int32 = NDArray[np.int32]


class Generator:
    """A loaded model and a live session, one request at a time. Not thread-safe.

    Create it with `Generator.load`; it can be used as a context manager. `Generator(loaded)` is one more session
    over weights that are loaded already; such generators take turns, in one thread.

    session  what the last prompt and its answer left
    pool     sessions that wait for their turn on this one
    """

    def __init__(self, loaded: LoadedModel, pool: SessionPool | None = None) -> None:
        """Raises ConfigError for a cache that forgets beside a pool."""
        self.loaded = loaded
        self.pool = SessionPool() if pool is None else pool
        cache = self.spec.cache
        check_forgetting(cache, self.spec.decoding, pools=self.pool.several)
        if cache.most_rows is not None:
            log.warning(
                "beyond %d tokens the cache forgets what attention saw least: answers are not exact then",
                cache.most_rows,
            )
        self.session = Session(self.spec, self.pool.most_bytes)
        self.reused = 0  # tokens that the last prefill found in the cache
        self.drafts = DraftCount()  # of the last answer
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
        """As `load`."""
        loaded = LoadedModel.load(path, options)
        folder = None
        if options.folder is not None:
            identity = loaded.spec.bundle.manifest.identity
            folder = SessionFolder(
                Path(options.folder), options.folder_bytes, identity, options.folder_shared
            )
        generator = cls(loaded, SessionPool(options.pool_bytes, folder))
        generator._owns_weights = True
        loaded.warm_up(generator.session)
        return generator

    def close(self) -> None:
        """Write the pool's sessions to its folder; the weights go too if `load` loaded them."""
        self.pool.close(self.session)
        if self._owns_weights:
            self.loaded.close()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Most tokens of prompt and answer."""
        return self.spec.context

    # The three calls of design: prefill, decode, logprobs

    def prefill(
        self,
        ids: ArrayLike,
        config: PrefillConfig | None = None,
        watch: Watch | None = None,
        reuse: bool = True,
    ) -> Float32:
        """Run a whole prompt, keeping what the cache holds of it → logits after its last token.

        The logits are float32 [vocab] and read-only. Without `reuse` the prompt runs from its first token.
        `ids` int [N], 1 ≤ N ≤ context. Raises ContextOverflowError, UnknownTokenError, InputError, Cancelled.
        """
        config, watch = config or self.bundle.manifest.prefill, watch or Watch()
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        check_policy(self.spec.layers, config.algorithm, self.spec.device)
        session = self.session
        if not reuse:
            self.pool.set_aside(session)
            session.reset()
        else:
            self.pool.change(session, tokens, config)
        if self._answered(tokens, config):
            self.reused = len(tokens)
            self.loaded.forward.stopwatch = PrefillTimer(config.algorithm.phases)
            assert session.logits is not None
            return session.logits
        plan = plan_reuse(session.known, session.origin, tokens, config)
        last = self._run(tokens, config, plan, watch, needed=len(tokens) - plan.length - 1)
        return session.keep_logits(self.loaded.forward.logits(Span(last - 1, last))[0])

    def decode(self, token: int) -> Float32:
        """Append one token and attend to everything → logits float32 [vocab]."""
        if not 0 <= token < self.model.vocab_size:
            raise UnknownTokenError(int(token), self.model.vocab_size)
        session = self.session
        if session.length >= self.context:
            raise ContextOverflowError(session.length + 1, self.context)
        if not session.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        logits = self.loaded.forward.decode(token, session)
        session.decoded([token])
        return session.keep_logits(logits)

    def decode_given(self, ids: ArrayLike, watch: Watch | None = None) -> Iterator[tuple[Span, Float32]]:
        """As `decode` of one token after the other where all are known: many at once, and up to rounding the same.

        Each attends to everything before it, whatever the decode policy looks at. Yields rows of `ids` [N] and the
        logits after them, float32 [len(rows), vocab], which are valid until the next are asked for. Raises as
        `decode`, and Cancelled, after which the cache holds what it held before.
        """
        session, watch = self.session, watch or Watch()
        if not session.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        n, past, origin = len(tokens), session.length, session.origin
        if past + n > self.context:
            raise ContextOverflowError(past + n, self.context)
        session.origin = Provenance()
        try:
            run = PromptRun(tokens, Prefix.EXACT, Full(), session, watch.checkpoint(n))
            self.loaded.forward.prefill(run)
            session.append(tokens, generated=True)
        finally:
            origin = origin.forgetting(past + n, self.spec.cache.most_rows)
            session.origin = origin.from_row(session.store.earliest)
            if session.length == past and self.forgets(past + n):
                self.reset()  # rows went that are not known to have
        for rows in spans(n, self.loaded.forward.head_rows):
            logits = self.loaded.forward.logits(rows)
            if rows.stop == n:
                session.keep_logits(logits[-1])
            yield rows, logits

    def logprobs(
        self, ids: ArrayLike, config: PrefillConfig | None = None, watch: Watch | None = None
    ) -> Float32:
        """log p(ids[t+1] | ids[:t+1]) under the policy, float32 [N - 1]. Starts from an empty cache."""
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        out: Float32 = np.empty(len(tokens) - 1, np.float32)
        for rows, logits in self.each_logits(tokens, config, watch):
            known = tokens[rows.start + 1 : rows.stop + 1]  # nobody knows what follows the last
            wide = logits[: len(known)].astype(np.float64)  # [rows, V]
            wide -= wide.max(axis=1, keepdims=True)
            chosen = wide[np.arange(len(known)), known]
            out[rows.start : rows.start + len(known)] = chosen - np.log(np.exp(wide).sum(axis=1))
        return out

    def each_logits(
        self, ids: ArrayLike, config: PrefillConfig | None = None, watch: Watch | None = None
    ) -> Iterator[tuple[Span, Float32]]:
        """Logits after every token of a prompt that starts from an empty cache, as many rows at once as fit.

        Yields rows and float32 [len(rows), vocab], which are valid until the next are asked for. Raises as
        `prefill`.
        """
        config, watch = config or self.bundle.manifest.prefill, watch or Watch()
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        check_policy(self.spec.layers, config.algorithm, self.spec.device)
        self.reset()
        n = self._run(tokens, config, Reuse(Prefix.NONE, 0), watch, needed=0)
        for rows in spans(n, self.loaded.forward.head_rows):
            logits = self.loaded.forward.logits(rows)
            if rows.stop == n:
                self.session.keep_logits(logits[-1])
            yield rows, logits

    def generate(
        self,
        ids: Sequence[int] | IntArray,
        max_new_tokens: int = 64,
        config: PrefillConfig | None = None,
        sampling: Sampling | None = None,
        stop_tokens: Sequence[int] = (),
        watch: Watch | None = None,
        constraint: Constraint | None = None,
        reuse: bool = True,
        speculate: Speculation | None = None,
    ) -> Iterator[GenerationEvent]:
        """Prefill, then sample: yields one Prefilled, a TokenGenerated a token and one Finished.

        Ends at a token of `stop_tokens` (not yielded, reason "stop"), after `max_new_tokens` or when the
        context is full (reason "length"). Raises Cancelled between two tokens when `watch` says so. `constraint`
        says which tokens may come; it must allow some of `stop_tokens` once the answer may end. `reuse` is
        `prefill`'s. `speculate` takes the place of the load option; tokens do not depend on it.
        """
        if max_new_tokens < 0:
            raise ConfigError(
                f"max_new_tokens must not be negative, but is {max_new_tokens}", field="max_new_tokens"
            )
        watch = watch or Watch()
        sampler = Sampler(sampling or Sampling(), self.model.vocab_size)
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        logits = self.prefill(tokens, config, watch, reuse)
        yield Prefilled(prompt_tokens=len(tokens), reused_tokens=self.reused, timer=self.loaded.forward.timer)
        sampler.reset(tokens.tolist())
        stops = frozenset(stop_tokens)
        steps = self._steps(tokens, speculate)
        try:
            for produced in range(max_new_tokens):
                sampled = sampler.sample(logits, constraint.allowed() if constraint else None)
                if sampled.token in stops:
                    yield Finished("stop", produced)
                    return
                sampler.accept(sampled.token)
                if constraint:
                    constraint.accept(sampled.token)
                yield TokenGenerated(sampled)
                if self.session.length >= self.context or produced + 1 == max_new_tokens:
                    break
                if watch.cancelled():
                    raise Cancelled("generation was stopped")
                logits = steps.after(sampled.token, wanted=max_new_tokens - produced - 1)
        finally:
            steps.close()
        yield Finished("length", min(max_new_tokens, produced + 1) if max_new_tokens else 0)

    def _steps(self, tokens: IntArray, speculate: Speculation | None) -> AnswerSteps:
        """Those of an answer to a prompt."""
        reads_ahead = self.speculation(speculate)[0] == "lookup"
        drafter = Drafter(tokens.tolist()) if reads_ahead else None
        steps = AnswerSteps(self.loaded.forward, self.session, drafter)
        self.drafts = steps.count
        return steps

    def speculation(self, asked: Speculation | None = None) -> tuple[Speculation, str | None]:
        """How an answer is read ahead if it is `asked`, by default as the model was loaded; and why it is not where
        that is not possible."""
        chosen = asked or self.spec.speculate
        reason = None if chosen == "off" else self.loaded.forward.one_row_because(self.session)
        return ("off" if reason else chosen), reason

    def report(self) -> PrefillReport:
        """Which keys the policy kept of the last prompt's past."""
        session, some = self.session, self.model.under_policies.layers > 0
        if session.origin.config is None or session.state_config is None or not some:
            return PrefillReport.empty()
        return session.state_config.algorithm.report(session.prefill_state, session.origin)

    def seen(self) -> Seen | None:
        """What the last prompt's rows saw of their attention, where the policy compared it with full attention."""
        session = self.session
        if session.origin.config is None or session.state_config is None:
            return None
        return session.state_config.algorithm.seen_share(session.prefill_state)

    def memory_sets(self) -> list[Int32]:
        """Per layer int32 [Hs, M], the memory after the last full chunk; empty when no memory was needed."""
        return list(self.report().last)

    def boundary_memory(self) -> Int32:
        """Memory sets at every chunk boundary of a prompt run from an empty cache, [layers, boundaries, Hs, M].

        Boundary b lies after chunk b; only those that the last such prompt went past hold anything.
        """
        return self.report().boundaries.swapaxes(0, 1)

    def forgets(self, tokens: int) -> int:
        """How many of so many tokens the cache forgets on purpose."""
        return self.spec.forgets(tokens)

    def reset(self) -> None:
        """Forget every token."""
        self.session.reset()

    def reads(self, config: PrefillConfig) -> bool:
        """Whether a prompt that fills the context can be read from its first token under a configuration."""
        try:
            check_policy(self.spec.layers, config.algorithm, self.spec.device)
            self.loaded.forward.settle(config.algorithm, 0, self.context)
        except ConfigError:
            return False
        return True

    @property
    def layer_report(self) -> dict[str, Any]:
        """How layers read the last prompt, by options of their kinds; None where the model has no such layers."""
        return self.loaded.forward.layers.report()

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.session.length

    @property
    def timer(self) -> PrefillTimer:
        """Where the time of the last prefill went."""
        return self.loaded.forward.timer

    def _answered(self, tokens: IntArray, config: PrefillConfig) -> bool:
        """Whether the session holds exactly this prompt, with its logits at hand. What was generated sparsely is no
        answer where all is to be exact."""
        session = self.session
        exact = session.origin.exact_rows(session.length) == session.length
        return (
            session.logits is not None
            and (exact or not config.algorithm.exact)
            and same_arithmetic(session.origin.config, config)
            and len(tokens) == session.length == shared_prefix(session.known, tokens)
        )

    def _run(self, tokens: IntArray, config: PrefillConfig, reuse: Reuse, watch: Watch, needed: int) -> int:
        """Bring the cache from `reuse.length` tokens to all of `tokens`; returns the number of new ones.

        Of these the logits from the row `needed` on can be asked for then.
        """
        session, policy, before = self.session, config.algorithm, self.session.origin
        n = len(tokens) - reuse.length
        self.loaded.forward.settle(policy, reuse.length, n)  # what it refuses has changed nothing
        session.prepare(config)
        self.reused, session.logits = reuse.length, None
        session.truncate(reuse.length)
        # Until all is done the cache is worth no more than what an interrupted run leaves behind.
        session.origin = Provenance()
        done = False
        try:
            new = tokens[reuse.length :]
            checkpoint = watch.checkpoint(n)
            self.loaded.forward.prefill(PromptRun(new, reuse.prefix, policy, session, checkpoint, needed))
            done = True
        finally:
            if not done:
                origin = policy.after_interruption(reuse, n, before)
                session.origin = origin.from_row(max(session.store.earliest, before.earliest))
                lost = session.origin.earliest > session.length or self.forgets(reuse.length + n)
                if session.origin.config is None or lost:
                    self.reset()
        session.append(tokens[reuse.length :], generated=False)
        if reuse.prefix is Prefix.HISTORY:
            session.origin = before.at_turn(reuse.length)
        else:
            session.origin = Provenance.fresh(config, len(tokens))
        origin = session.origin.forgetting(session.length, self.spec.cache.most_rows)
        earliest = before.earliest if reuse.length else 0
        session.origin = origin.from_row(max(session.store.earliest, earliest))
        watch.progress(n, n)
        return n
