"""From text to text: one bundle's generator, tokenizer and chat template, and an answer as it streams out.

    with TextModel.load("bundle/") as model:
        request = Request(model.text_prompt("Once upon a time"), max_tokens=64, stop=("\\n\\n",))
        for event in model.complete(request):
            if isinstance(event, TextPiece):
                print(event.text, end="", flush=True)

Commands and servers use this module. It does not print, handle signals or depend on HTTP.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from h2o_runtime.answers.completion import Completion, FinishReason, TextDelta, TextEvent, Timings
from h2o_runtime.answers.dialects import Dialect, choose
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.events import (
    GenerationEvent,
    Prefilled,
    PromptPieceRead,
    Run,
    StepWanted,
    TokenGenerated,
    alone,
)
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import SampledToken
from h2o_runtime.caches.reuse import ShortDifference
from h2o_runtime.config.load_options import LoadOptions, by_fields
from h2o_runtime.errors import BundleError, Cancelled, ContextOverflowError, InputError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import Seen
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.sessions.session import Float32, Session
from h2o_runtime.sessions.transcript import Transcripts
from h2o_runtime.text import ChatTemplate, Markup, StopStrings, TextStream, Tokenizer, ToolUse

log = logging.getLogger(__name__)


class TextModel:
    """One bundle that reads and writes text: one request at a time, or one run in each of its `slots`.

    `text_prompt` and `chat_prompt` may be called while another thread is in `complete`; other methods may not.

    slots    generators over the same weights, each for one run

    speech   how the model writes thoughts and calls

    end_ids: token ids that end an answer: the checkpoint's EOS, and what its chat template ends a turn with.
    """

    def __init__(
        self, generator: Generator, tokenizer: Tokenizer, template: ChatTemplate | BundleError
    ) -> None:
        """template: the chat template, or the error to raise for a conversation."""
        self.generator = generator
        self.slots = (generator, *generator.others)
        self.tokenizer = tokenizer
        self._template = template
        self.speak(choose(self.chat_template))
        self._markup = Markup(tokenizer, () if isinstance(template, BundleError) else template.texts.values())
        known = generator.model.vocab_size
        ends = tokenizer.eos_ids | (_turn_ends(template, tokenizer) - self.speech.shown)
        self.end_ids = frozenset(token for token in ends if token < known)
        self._transcripts = Transcripts()
        for transcript in generator.pool.transcripts():
            if transcript.ids.max() < known:
                self._transcripts.add(transcript)

    @classmethod
    @by_fields(LoadOptions)
    def load(cls, path: str | Path, options: LoadOptions) -> TextModel:
        """Open a bundle; keywords and errors are those of `Generator.load`."""
        generator = Generator.open(path, options)
        try:
            tokenizer = Tokenizer.load(path)
            generator.bundle.held.hold([Tokenizer.FILE])  # grammars read it later
            template: ChatTemplate | BundleError
            try:
                named = options.chat_template
                template = (
                    ChatTemplate.load(path)
                    if named is None
                    else ChatTemplate.read(named, tokenizer.special_tokens)
                )
            except BundleError as error:
                log.info("no chat template: %s", error)
                template = error
            return cls(generator, tokenizer, template)
        except BaseException:
            generator.close()
            raise

    def prepare(self) -> None:
        """Load now what later requests may need, if it takes little memory: the bundle's folder may be replaced."""
        backend = self.generator.loaded.backend
        if backend.native_products:
            backend.load_hidden()

    def check_files(self) -> None:
        """Raises BundleChangedError if a file that is in use was written into."""
        held = self.generator.bundle.held
        held.check(held.names)

    def close(self) -> None:
        """Give back sessions, processes and memory."""
        self.generator.close()
        if isinstance(self._template, ChatTemplate):
            self._template.close()

    def __enter__(self) -> TextModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template; None if the bundle has none."""
        return None if isinstance(self._template, BundleError) else self._template.texts.get("default")

    def speak(self, dialect: Dialect) -> None:
        """Read and ask for calls in this dialect, rather than the one that the chat template shows."""
        self.speech = Speech.of(dialect, self.chat_template, self.tokenizer.special_id)
        template = self._template
        self._tool_use = None if isinstance(template, BundleError) else ToolUse(template, dialect.written)

    def text_prompt(self, text: str) -> Prompt:
        """A text to continue. Raises InputError for empty or invalid text, ContextOverflowError if it is
        clearly longer than the context.
        """
        if not text:
            raise InputError("the prompt is empty: give at least one character")
        return Prompt(tuple(self.tokenizer.encode_within(text, self.generator.context)), text)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], most: int | None = None, /, **options: Any
    ) -> Prompt:
        """A conversation to be answered; `options` are those of `ChatTemplate.render`.

        most: tokens that the prompt may have; None: as many as the context holds.

        If the template does not support tools, tools and calls become plain text (`text.tool_use`). Special tokens
        in the messages stay text (`text.markup`).

        If the conversation continues an answer of this model, or of a session in the folder, the prompt has the
        tokens that were generated for that answer (`sessions.transcript`).

        Raises InputError for messages that the template refuses, ContextOverflowError for a prompt that is clearly
        longer than `most`, BundleError if there is no template.
        """
        if self._tool_use is None:
            assert isinstance(self._template, BundleError)
            raise self._template
        most = self.generator.context if most is None else most
        if len(messages) > most:  # each has at least one token, wherever it ends
            raise ContextOverflowError(len(messages), most, at_least=True)
        tool_use = self._tool_use
        text = self._markup.render(lambda told, names: tool_use.render(told, **names), messages, options)
        chat = not options.get("continue_final_message")
        return Prompt(self._continued(text, most) or self._encoded(text, most), text, chat)

    def complete(
        self, request: Request, watch: Watch | None = None, prompt_piece: int | None = None
    ) -> Iterator[TextEvent]:
        """Answer: yields Prefilled, then deltas of text, then one Completion.

        prompt_piece: approximate number of prompt tokens that are read at once; a cancelled prefill keeps the
        pieces before. None reads a prompt at once.

        When `watch` cancels, the Completion says so and holds the text so far; a cancelled prefill yields
        nothing before it. The iterator may be closed early. Raises ContextOverflowError, UnknownTokenError,
        InputError, ConfigError and BackendError.
        """
        return alone(self.run(request, watch, prompt_piece=prompt_piece), self.generator.step)

    def run(
        self,
        request: Request,
        watch: Watch | None = None,
        generator: Generator | None = None,
        prompt_piece: int | None = None,
        shared: SharedPrompt | None = None,
    ) -> Run[TextEvent]:
        """As `complete`, for a driver of several runs: yields a pause when others may run, and requests every
        step.

        generator: one of `slots` without another run. prompt_piece: approximate number of prompt tokens between
        pauses. shared: the prompt that several answers share
        """
        generator = generator or self.generator
        if request.pooling is not None:
            yield from self._embed(request, request.pooling, watch, generator, prompt_piece)
            return
        request = self._resolved(request, generator)
        answer = _Answer(self, request, generator)
        tokens = generator.run(request, watch, prompt_piece, shared)
        logits = None
        try:
            while not answer.ended:
                item = tokens.send(logits)
                logits = None
                if isinstance(item, (PromptPieceRead, StepWanted)):
                    logits = yield item
                else:
                    yield from answer.took(item)
        except Cancelled:
            answer.reason = "cancelled"
        finally:
            tokens.close()
        yield from answer.rest()
        completion = answer.completion()
        self._remember(request, completion, generator.session)
        yield completion
        generator.pool.share(generator.session)

    def _embed(
        self,
        request: Request,
        pooling: Pooling,
        watch: Watch | None,
        generator: Generator,
        prompt_piece: int | None,
    ) -> Run[TextEvent]:
        """As `run`, for a prompt that is embedded; yields only a Completion."""
        ids = request.prompt.ids
        policy = request.prefill or generator.default_policy
        reading, seconds = generator.embed(ids, pooling, policy, watch, prompt_piece), 0.0
        embedding: Float32 | None = None
        reason: FinishReason = "stop"
        while embedding is None and reason == "stop":
            since = time.perf_counter()
            pause = None
            try:
                pause = next(reading)
            except StopIteration as end:
                embedding = end.value
            except Cancelled:
                reason = "cancelled"
            seconds += time.perf_counter() - since  # without what others do in a pause
            if pause is not None:
                yield pause
        timings = Timings(
            cache_n=0, prompt_n=len(ids), prompt_ms=1e3 * seconds, predicted_n=0, predicted_ms=0.0
        )
        yield Completion("", reason, (), timings, policy, request.sampling.seed or 0, embedding=embedding)

    def _resolved(self, request: Request, generator: Generator) -> Request:
        """With a policy, a known seed, and the model's end tokens, banned if they must not end the answer."""
        sampling = request.sampling
        if request.prefill is None:
            request = replace(request, prefill=generator.default_policy)
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(32))
        if not request.ignore_eos:
            return replace(request, sampling=sampling, stop_tokens=tuple(self.end_ids))
        banned = dict.fromkeys(self.end_ids, -math.inf)
        return replace(request, sampling=replace(sampling, logit_bias={**sampling.logit_bias, **banned}))

    def _encoded(self, text: str, most: int) -> tuple[int, ...]:
        return tuple(self._markup.encode_within(text, most))

    def _continued(self, text: str, most: int) -> tuple[int, ...]:
        """Ids of `text` that begin with those of an earlier answer; empty if it does not continue one.

        The rest must begin with a special token. Every tokenizer cuts there, so both sides can be encoded
        separately.
        """
        for characters, ids in self._transcripts.beginnings(text):
            rest = self._encoded(text[characters:], most)
            if rest and rest[0] in self.tokenizer.special_ids:
                return (*ids.tolist(), *rest)
        return ()

    def _remember(self, request: Request, completion: Completion, session: Session) -> None:
        """Store the tokens of a chat's answer for `_continued`, if they decode to exactly its text."""
        prompt = request.prompt
        if prompt.chat and prompt.text is not None and completion.stop is None and completion.tokens:
            answer = [sampled.token for sampled in completion.tokens]
            written = self._markup.of_answer(completion.text, answer, request.shown)
            if written is not None:
                session.transcript = self._transcripts.answered(
                    prompt.text, np.array(prompt.ids, np.int64), written, np.array(answer, np.int64)
                )


class _Answer:
    """The answer of `TextModel.run` so far.

    ended  whether no more tokens are wanted
    """

    def __init__(self, model: TextModel, request: Request, generator: Generator) -> None:
        self._seed = request.sampling.seed or 0
        self.reason: FinishReason = "length"
        self.ended = False
        self._generator = generator
        assert request.prefill is not None, "it is resolved"
        self._prefill = request.prefill
        # A chat's answer begins a text; any other continues the prompt's last character.
        prefix = () if request.prompt.chat else request.prompt.ids
        self._stream = TextStream(model.tokenizer, prefix, request.shown)
        self._stops = StopStrings(request.stop)
        self._shown = request.shown
        self._texts: list[str] = []
        self._tokens: list[SampledToken] = []
        self._given = 0  # tokens already sent with a delta
        self._prompt_n = self._cache_n = 0
        self._seen: Seen | None = None
        self._difference: ShortDifference | None = None
        self._prompt_seconds = self._predicted_seconds = 0.0
        self._since = time.perf_counter()

    def took(self, event: GenerationEvent) -> Iterator[TextEvent]:
        """Process an event → the events for the reader."""
        seconds = time.perf_counter() - self._since
        if isinstance(event, Prefilled):
            self._cache_n = event.reused_tokens
            self._prompt_n = event.prompt_tokens - event.reused_tokens
            self._prompt_seconds = seconds
            self._seen, self._difference = self._generator.seen(), event.difference
            yield event
        elif isinstance(event, TokenGenerated):
            self._tokens.append(event.sampled)
            self._predicted_seconds += seconds
            yield from self._delta(self._text(event.sampled.token))
            if self._stops.stopped is not None:
                self.reason, self.ended = "stop", True
        else:
            self.reason, self.ended = event.reason, True
        self._since = time.perf_counter()  # the reader's own time does not count

    def rest(self) -> Iterator[TextDelta]:
        """The text held back, once no more tokens come."""
        yield from self._delta(self._stops.push(self._stream.finish()) + self._stops.finish())

    def completion(self) -> Completion:
        return Completion(
            text="".join(self._texts),
            finish_reason=self.reason,
            tokens=tuple(self._tokens),
            timings=Timings(
                cache_n=self._cache_n,
                prompt_n=self._prompt_n,
                prompt_ms=1e3 * self._prompt_seconds,
                predicted_n=len(self._tokens),
                predicted_ms=1e3 * self._predicted_seconds,
                draft_n=self._generator.drafts.drafted,
                draft_n_accepted=self._generator.drafts.accepted,
            ),
            prefill=self._prefill,
            seed=self._seed,
            stop=self._stops.stopped,
            forgotten=self._generator.spec.forgets(self._generator.length),
            seen=self._seen,
            difference=self._difference,
        )

    def _text(self, token: int) -> str:
        """What of the answer's text is certain now. No stop string begins or ends in a special token."""
        text = self._stream.push(token)
        return self._stops.finish() + text if token in self._shown else self._stops.push(text)

    def _delta(self, text: str) -> Iterator[TextDelta]:
        if text:
            self._texts.append(text)
            tokens, self._given = tuple(self._tokens[self._given :]), len(self._tokens)
            yield TextDelta(text, tokens)


def _turn_ends(template: ChatTemplate | BundleError, tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens that the chat template puts right after an assistant's message.

    A checkpoint whose only EOS is <|end_of_text|> may still end its turns with <|eot_id|>; only the template
    shows it.
    """
    if isinstance(template, BundleError):
        return frozenset()
    words = "Words of the assistant."
    messages = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": words}]
    try:
        text = template.render(messages, add_generation_prompt=False)
    except InputError:  # a template with other requirements; use the checkpoint's EOS alone
        return frozenset()
    after = tokenizer.encode(text.partition(words)[2].lstrip(), add_special_tokens=False)[:1]
    return tokenizer.special_ids.intersection(after)
