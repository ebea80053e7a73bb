"""The public face of the runtime: load a bundle, prefill a prompt, decode, generate."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_runtime.activations import Activations
from h2o_runtime.attention import AttentionProvider
from h2o_runtime.attention.select import make_provider
from h2o_runtime.backends import Backend
from h2o_runtime.backends.select import make_backend
from h2o_runtime.bundle import Bundle
from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.compatibility import check_forgetting, check_latent, check_policy
from h2o_runtime.config import PrefillConfig
from h2o_runtime.constraint import Constraint
from h2o_runtime.devices import Device, HostDevice
from h2o_runtime.devices.select import make_device
from h2o_runtime.errors import Cancelled, ConfigError, ContextOverflowError, InputError, UnknownTokenError
from h2o_runtime.events import Finished, GenerationEvent, Prefilled, TokenGenerated
from h2o_runtime.forward import Forward, PromptRun, Watch
from h2o_runtime.latent import LatentAttention, expansion, is_plain
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.names import BackendName, DenseChoice, DeviceChoice, LatentChoice, LatentForm, ProviderChoice
from h2o_runtime.parked_sessions import ParkedSessions
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import PrefillReport
from h2o_runtime.process import check_threads, let_go_at_exit
from h2o_runtime.reuse import Prefix, Provenance, Reuse, plan_reuse, same_arithmetic
from h2o_runtime.sampling import Sampler, Sampling
from h2o_runtime.schedule import Span, spans
from h2o_runtime.session import Float32, IntArray, Session
from h2o_runtime.session_folder import SessionFolder
from h2o_runtime.sessions.transcript import Transcript
from h2o_runtime.timings import PrefillTimer
from h2o_runtime.token_ids import checked_ids

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192
FOLDER_BYTES = 4 << 30

Int32 = NDArray[np.int32]


class Generator:
    """One model, one cache, one request at a time. Not thread-safe.

    Create it with `Generator.load`; it can be used as a context manager.
    """

    def __init__(
        self,
        bundle: Bundle,
        backend: Backend,
        provider: AttentionProvider,
        context: int,
        device: Device,
        cache: Cache | None = None,
        decoding: DecodePolicy[Any] | None = None,
        parked_bytes: int = 0,
        folder: SessionFolder | None = None,
        latent: LatentChoice = "auto",
        expanded: AttentionProvider | None = None,
    ) -> None:
        self.bundle = bundle
        self.model = bundle.manifest.model
        self.context = context
        self.backend = backend
        self.provider = provider
        self.device = device
        self.cache = cache or Contiguous()
        self.decoding = decoding or FullDecode()
        check_forgetting(self.cache, self.decoding, parks=parked_bytes > 0 or folder is not None)
        if self.cache.most_rows is not None:
            log.warning(
                "beyond %d tokens the cache forgets what attention saw least: answers are not exact then",
                self.cache.most_rows,
            )
        check_latent(self.model, self.cache, self.decoding, latent)
        self.latent = latent
        self.store = self.cache.new_pool(self.model, context, parked_bytes, device, provider)
        layers = range(self.model.layers)
        self.store.read_in_pages(frozenset(filter(self.decoding.reads_in_pages, layers)))
        self.session = Session(context)
        self.session.decode_state = self.decoding.new_state(self.model, context, device)
        buffers = Activations(self.model, context, device)
        between = None
        if self.model.latent is not None:
            plain = is_plain(self.model, self.cache)
            between = LatentAttention(self.model, backend, expanded, buffers, context, device, latent, plain)
        self._forward = _forward_on(device)(
            bundle.manifest, backend, provider, self.store, self.decoding, buffers, device, between
        )
        self._expanded = expanded
        self.parked = ParkedSessions(parked_bytes, folder)
        self.reused = 0  # tokens that the last prefill found in the cache
        let_go_at_exit(self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        backend: BackendName = "onnxruntime",
        context: int | None = None,
        attention: ProviderChoice = "auto",
        threads: int | None = None,
        device: DeviceChoice = "auto",
        cache: Cache | None = None,
        decoding: DecodePolicy[Any] | None = None,
        form: DenseChoice = "auto",
        parked_bytes: int = 0,
        folder: str | Path | None = None,
        folder_bytes: int = FOLDER_BYTES,
        latent: LatentChoice = "auto",
        verify: bool = False,
    ) -> Generator:
        """Open a bundle and make it ready to run.

        `context` is the most tokens that prompt and answer can have together; by default what the model was
        trained for, at most 8192. `attention` chooses who executes the attention operators; "auto" takes the
        native kernels where they are built. `device` "auto" takes a GPU where the backend can use it. `cache`
        owns keys and values, contiguous by default; `decoding` says what a generated token sees, everything by
        default. `form` says how ONNX Runtime multiplies with weights that are integers, by default as measured on
        this machine. `parked_bytes` of the host's memory hold sessions that others took the place of, until
        they go on; what there is no room for, and what is there in the end, is written below `folder`, in at most
        `folder_bytes`, and found again. `latent` says in which form latent attention reads prompts, by default as
        counted operations say. `verify` first compares every file's content with its hash in the manifest. Raises
        BundleError, BackendError or ConfigError.
        """
        opened = Bundle.open(path)
        if verify:
            opened.verify()
        model = opened.manifest.model
        context = min(model.max_position_embeddings, DEFAULT_CONTEXT) if context is None else context
        if not 1 <= context <= MAX_CONTEXT:
            raise ConfigError(
                f"context must be from 1 to {MAX_CONTEXT:,} tokens, but is {context}", field="context"
            )
        check_threads(threads)
        if context > model.max_position_embeddings:
            log.warning(
                "context %d is beyond the %d positions that the model was trained for; expect worse answers there",
                context,
                model.max_position_embeddings,
            )
        place = make_device(device, backend)
        executor = make_backend(backend, opened, place, threads, context, form)
        provider = make_provider(attention, opened, place, threads)
        executor.activate()
        provider.activate(model.attention)
        expanded, shape = None, expansion(model, provider)
        if shape is not None:
            same = "functions" if provider.name == "functions" else attention
            expanded = make_provider(same, opened, place, threads)
            expanded.activate(shape)
        kept = None
        if folder is not None:
            kept = SessionFolder(Path(folder), folder_bytes, opened.manifest.identity)
        parts = opened, executor, provider, context, place, cache, decoding, parked_bytes, kept
        generator = cls(*parts, latent, expanded)
        generator._forward.warm_up(opened.manifest.prefill.algorithm.batch_size, generator.session)
        return generator

    def close(self) -> None:
        """Give back sessions and memory; the generator is of no use afterwards."""
        self.parked.close(self)
        self.device.synchronize()
        self._forward.release()
        self.backend.deactivate()
        self.provider.deactivate()
        if self._expanded is not None:
            self._expanded.deactivate()

    def __enter__(self) -> Generator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        check_policy(self.model, config.algorithm)
        session = self.session
        if not reuse:
            self.parked.set_aside(self)
            self.reset()
        else:
            self.parked.change(self, tokens, config)
        if self._answered(tokens, config):
            self.reused = len(tokens)
            self._forward.stopwatch = PrefillTimer(config.algorithm.phases)
            assert session.logits is not None
            return session.logits
        plan = plan_reuse(session, tokens, config, session.origin)
        last = self._run(tokens, config, plan, watch, needed=len(tokens) - plan.length - 1)
        return session.keep_logits(self._forward.logits(Span(last - 1, last))[0])

    def decode(self, token: int) -> Float32:
        """Append one token and attend to everything → logits float32 [vocab]."""
        if not 0 <= token < self.model.vocab_size:
            raise UnknownTokenError(int(token), self.model.vocab_size)
        session = self.session
        if session.length >= self.context:
            raise ContextOverflowError(session.length + 1, self.context)
        if not session.length:
            raise InputError("decode needs a prompt in the cache: call prefill first")
        logits = self._forward.decode(token, session)
        session.append([token], generated=True)
        session.origin = session.origin.decoded(self.decoding.exact).held(
            session.length, self.cache.most_rows
        )
        return session.keep_logits(logits)

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
        check_policy(self.model, config.algorithm)
        self.reset()
        n = self._run(tokens, config, Reuse(Prefix.NONE, 0), watch, needed=0)
        for rows in spans(n, self._forward.head_rows):
            logits = self._forward.logits(rows)
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
    ) -> Iterator[GenerationEvent]:
        """Prefill, then sample: yields one Prefilled, a TokenGenerated a token and one Finished.

        Ends at a token of `stop_tokens` (not yielded, reason "stop"), after `max_new_tokens` or when the
        context is full (reason "length"). Raises Cancelled between two tokens when `watch` says so. `constraint`
        says which tokens may come; it must allow some of `stop_tokens` once the answer may end. `reuse` is
        `prefill`'s.
        """
        if max_new_tokens < 0:
            raise ConfigError(
                f"max_new_tokens must not be negative, but is {max_new_tokens}", field="max_new_tokens"
            )
        watch = watch or Watch()
        sampler = Sampler(sampling or Sampling(), self.model.vocab_size)
        tokens = checked_ids(ids, self.model.vocab_size, self.context)
        logits = self.prefill(tokens, config, watch, reuse)
        yield Prefilled(prompt_tokens=len(tokens), reused_tokens=self.reused, timer=self._forward.timer)
        sampler.reset(tokens.tolist())
        stops = frozenset(stop_tokens)
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
            logits = self.decode(sampled.token)
        yield Finished("length", min(max_new_tokens, produced + 1) if max_new_tokens else 0)

    def transcripts(self) -> list[Transcript]:
        """Those of the sessions in the folder, the one not used for longest first."""
        folder = self.parked.folder
        found = [one.saved.transcript for one in folder.files()] if folder else []
        return [transcript for transcript in found if transcript is not None]

    def report(self) -> PrefillReport:
        """Which keys the policy kept of the last prompt's past."""
        session = self.session
        if session.origin.config is None or session.state_config is None:
            return PrefillReport.empty()
        return session.state_config.algorithm.report(session.prefill_state, session.origin)

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
        most = self.cache.most_rows
        return 0 if most is None else max(tokens - most, 0)

    def reset(self) -> None:
        """Forget every token."""
        self.session.reset()
        self.store.truncate(0)

    @property
    def latent_form(self) -> LatentForm | None:
        """How latent attention read the last prompt; None where there is none."""
        between = self._forward.latent
        return None if between is None else between.form

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.session.length

    @property
    def timer(self) -> PrefillTimer:
        """Where the time of the last prefill went."""
        return self._forward.timer

    def _answered(self, tokens: IntArray, config: PrefillConfig) -> bool:
        """Whether the session holds exactly this prompt, with its logits at hand. What was generated sparsely is no
        answer where all is to be exact."""
        session = self.session
        exact = session.origin.exact_rows(session.length) == session.length
        return (
            session.logits is not None
            and (exact or not config.algorithm.exact)
            and same_arithmetic(session.origin.config, config)
            and len(tokens) == session.length == session.shared_prefix(tokens)
        )

    def _run(self, tokens: IntArray, config: PrefillConfig, reuse: Reuse, watch: Watch, needed: int) -> int:
        """Bring the cache from `reuse.length` tokens to all of `tokens`; returns the number of new ones.

        Of these the logits from the row `needed` on can be asked for then.
        """
        session, policy, before = self.session, config.algorithm, self.session.origin
        n = len(tokens) - reuse.length
        self._forward.settle(policy, reuse.length, n)  # what it refuses has changed nothing
        self.prepare_state(config)
        self.reused, session.logits = reuse.length, None
        session.truncate(reuse.length)
        self.store.truncate(reuse.length)
        # Until all is done the cache is worth no more than what an interrupted run leaves behind.
        session.origin = Provenance()
        done = False
        try:
            new = tokens[reuse.length :]
            checkpoint = watch.checkpoint(n)
            self._forward.prefill(PromptRun(new, reuse.prefix, policy, session, checkpoint, needed))
            done = True
        finally:
            if not done:
                session.origin = policy.after_interruption(reuse, n, before)
                if session.origin.config is None or self.forgets(reuse.length + n):
                    self.reset()
        session.append(tokens[reuse.length :], generated=False)
        if reuse.prefix is Prefix.HISTORY:
            session.origin = before.at_turn(reuse.length)
        else:
            session.origin = Provenance.fresh(config, len(tokens))
        session.origin = session.origin.held(session.length, self.cache.most_rows)
        watch.progress(n, n)
        return n

    def prepare_state(self, config: PrefillConfig) -> None:
        """Make the session's state one of this configuration's policy."""
        session = self.session
        if session.state_config is None or not same_arithmetic(session.state_config, config):
            session.prefill_state = None  # before there is another: a small device has no room for two
            state = config.algorithm.new_state(self.model, self.context, self.device)
            session.prefill_state, session.state_config = state, config


def _forward_on(device: Device) -> type[Forward]:
    if isinstance(device, HostDevice):
        return Forward
    from h2o_runtime.recorded import RecordedForward

    return RecordedForward
