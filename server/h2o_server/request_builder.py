"""From a client's request to runtime requests. Runs in the text thread; errors are the runtime's own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from h2o_runtime.answers.constraint import Constraint
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.config.compatibility import check_policy
from h2o_runtime.errors import BundleError, ConfigError, ContextOverflowError, InputError
from h2o_runtime.names import Pooling
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy, policy_on_device
from h2o_runtime.text_model import TextModel
from h2o_server.answers.constraint import (
    AnswerConstraint,
    CallGrammar,
    Choices,
    Grammar,
    generation_constraint,
)
from h2o_server.answers.grammar import GrammarCompiler, UnfollowableError
from h2o_server.answers.reader import answer_constraint
from h2o_server.answers.schema_faults import located
from h2o_server.answers.tools import check_tools
from h2o_server.apis.chat.billing_line import BILLING_LINE, without_billing_line
from h2o_server.apis.chat.schema import AssistantMessage, ChatRequest, Message, ToolCall
from h2o_server.apis.completions.schema import CompletionRequest
from h2o_server.apis.embeddings.schema import EmbeddingRequest
from h2o_server.apis.shared.generation import MOST_CHOICES, Generation
from h2o_server.apis.shared.left_alone import left_alone
from h2o_server.apis.shared.prefill import Prefill, forms
from h2o_server.http.json_body import parse, sendable

log = logging.getLogger(__name__)

_RESERVED = {"messages", "tools", "add_generation_prompt", "continue_final_message", "documents"}
_MOST_INPUTS = 2048  # of a request for embeddings, as OpenAI has it
_TOLD = {"role", "content", "name", "tool_call_id"}  # message keys that templates see


@dataclass(frozen=True)
class RequestBuilder:
    """Makes runtime requests for one model.

    prefill: the policy of requests that name none
    """

    model: TextModel
    grammars: GrammarCompiler
    prefill: PrefillPolicy[Any]

    def chat(self, body: ChatRequest, most: int | None = None) -> Choices:
        """A request for each choice of the answer. Raises ConfigError, ContextOverflowError.

        most: tokens of the prompt, if it is only counted; None: as many as the context holds
        """
        _check_stream_options(body)
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise ConfigError(
                "max_tokens is the old name of max_completion_tokens: give one of the two", field="max_tokens"
            )
        if body.top_logprobs and not body.logprobs:
            raise ConfigError("top_logprobs needs logprobs: true", field="top_logprobs")
        check_tools(body)
        effort, unheard = self._effort(body)
        messages = without_billing_line(body.messages)
        prompt = self._chat_prompt(body, messages, effort, most)
        constraint = answer_constraint(body, prompt, self.model.speech)
        _check_end(body, constraint)
        if body.continue_final_message and constraint is not None and constraint.is_whole:
            raise ConfigError(
                "continue_final_message: an answer by a schema, or a required call, is a JSON text of its own and "
                "cannot continue a message: leave out one of the two",
                field="continue_final_message",
            )
        if constraint is not None and constraint.is_call:
            body = body.model_copy(update={"stop": None})  # it ends texts, and not in the middle of arguments
        limit = _limit(body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens)
        top = (body.top_logprobs or 0) if body.logprobs else None
        billed = {BILLING_LINE} if messages != body.messages else set()
        alone = left_alone(body) | unheard | billed
        requests = self._requests(body, prompt, limit, top, most)
        shown = self.model.speech.shown
        return Choices([replace(request, shown=shown) for request in requests], constraint, alone)

    def _chat_prompt(
        self, body: ChatRequest, messages: Iterable[Message], effort: Mapping[str, Any], most: int | None
    ) -> Prompt:
        try:
            told = [_message(message) for message in messages]
            return self.model.chat_prompt(told, most, **_template_names(body), **effort)
        except ContextOverflowError as error:
            raise _named(error, "messages", self.model.generator.context) from error
        except InputError as error:
            raise ConfigError(f"messages: {error}", field="messages") from error
        except BundleError as error:  # the message names this machine's folders
            log.error("%s", error)
            raise ConfigError(
                "messages cannot be read: this model has no usable chat template; send a prompt to /v1/completions "
                "instead",
                field="messages",
            ) from error

    def _effort(self, body: ChatRequest) -> tuple[dict[str, Any], set[str]]:
        """The template's variable that sets the amount of thought, and what is left alone if it has none."""
        effort, template = body.reasoning_effort, self.model.chat_template or ""
        if effort is None:
            return {}, set()
        named = body.chat_template_kwargs or {}
        for name, value in (("reasoning_effort", effort), ("enable_thinking", effort != "none")):
            if name in template and name not in named:
                return {name: value}, set()
        return {}, {"reasoning_effort"}

    def completion(self, body: CompletionRequest) -> Choices:
        """The choices of each prompt, one prompt after the other. Errors are those of `chat`."""
        _check_stream_options(body)
        prompts = body.prompts()
        _check_choices(body, len(prompts))
        limit = 16 if body.max_tokens is None else _limit(body.max_tokens)  # OpenAI's default
        constraint, requests = generation_constraint(body), []
        _check_end(body, constraint)
        for given in prompts:
            prompt = self._text_prompt(given, bool(body.echo))
            requests += self._requests(body, prompt, limit, body.logprobs)
        return Choices(requests, constraint, left_alone(body))

    def embedding(self, body: EmbeddingRequest, pooling: Pooling | None) -> Choices:
        """A request for each input. Errors are those of `chat`."""
        size = self.model.generator.model.hidden_size
        if body.dimensions not in (None, size):
            raise ConfigError(
                f"dimensions must be {size}, the size of this model's embeddings, or be left out",
                field="dimensions",
            )
        prefill, inputs = self.prefill_policy(body.prefill), body.inputs()
        if len(inputs) > _MOST_INPUTS:
            raise ConfigError(
                f"input may have at most {_MOST_INPUTS} inputs, but has {len(inputs):,}: send several requests",
                field="input",
            )
        self.model.generator.loaded.backend.load_hidden()  # here: running answers do not wait for it
        pooling = pooling or self.model.generator.bundle.manifest.embedding.pooling
        requests = []
        for index, given in enumerate(inputs):
            field = "input" if len(inputs) == 1 else f"input.{index}"
            prompt = self._text_prompt(given, echo=False, field=field)
            self._check_prompt(prompt, field)
            requests.append(Request(prompt, max_tokens=0, prefill=prefill, reuse=False, pooling=pooling))
        return Choices(requests, None)

    def _text_prompt(self, given: str | list[int], echo: bool, field: str = "prompt") -> Prompt:
        """echo: whether the text of a prompt given as ids is needed. field: the prompt's name in the request."""
        try:
            if isinstance(given, str):
                return self.model.text_prompt(given)
            text = self.model.tokenizer.decode(given, skip_special_tokens=False) if echo else None
            return Prompt(tuple(given), text)
        except ContextOverflowError as error:
            raise _named(error, field, self.model.generator.context) from error
        except InputError as error:
            raise ConfigError(f"{field}: {error}", field=field) from error

    def prefill_policy(self, given: Prefill | None) -> PrefillPolicy[Any]:
        """The request's policy, or the server's. Raises ConfigError."""
        if given is None:
            return self.prefill
        try:
            if isinstance(given, str):
                policy = PREFILL.read(given, self.prefill)
            else:
                named = {name: value for name, value in given.items() if value is not None}
                policy = PREFILL.make(named, self.prefill)
        except ConfigError as error:
            raise ConfigError(f"prefill: {error}", field=f"prefill.{error.field}") from error
        return policy_on_device(policy, self.model.generator.spec.device.name)

    def prefill_forms(self) -> list[dict[str, Any]]:
        """What the page offers: see `forms`."""
        spec = self.model.generator.spec

        def runs(policy: PrefillPolicy[Any]) -> bool:
            try:
                check_policy(spec.layers, policy, spec.device)
            except ConfigError:
                return False
            return True

        return forms(self.prefill, runs)

    def _requests(
        self,
        body: Generation,
        prompt: Prompt,
        max_tokens: int | None,
        top_logprobs: int | None,
        most: int | None = None,
    ) -> list[Request]:
        """One request for each choice. most: as in `chat`."""
        self._check_prompt(prompt, "messages" if isinstance(body, ChatRequest) else "prompt", most)
        if top_logprobs is not None:
            self.grammars.token_bytes(0)  # raises here, rather than after a stream has begun
        stop = [body.stop] if isinstance(body.stop, str) else body.stop
        sampling, prefill = self._sampling(body, top_logprobs), self.prefill_policy(body.prefill)
        return [
            Request(
                prompt,
                max_tokens=max_tokens,
                prefill=prefill,
                sampling=replace(sampling, seed=None if sampling.seed is None else sampling.seed + index),
                stop=tuple(stop or ()),
                ignore_eos=bool(body.ignore_eos),
                reuse=body.cache_prompt is not False,
                slot=self._slot(body.id_slot) if not index else None,
                speculate=body.speculate,
            )
            for index in range(body.choices)
        ]

    def _slot(self, asked: int | None) -> int | None:
        """The requested slot; None for any. Raises ConfigError for a slot that does not exist."""
        if asked is None or asked < 0:
            return None
        if asked >= len(self.model.slots):
            raise ConfigError(
                f"id_slot is {asked}, and this server has {len(self.model.slots)} slots, from 0 on: see /slots",
                field="id_slot",
            )
        return asked

    def _check_prompt(self, prompt: Prompt, field: str, most: int | None = None) -> None:
        """Checks that the runtime would only make after a stream has begun. most: as in `chat`."""
        generator = self.model.generator
        if len(prompt.ids) > (generator.context if most is None else most):
            raise ContextOverflowError(len(prompt.ids), generator.context, field=field)
        check_ids(prompt.ids, generator.model.vocab_size, field)

    def _sampling(self, body: Generation, top_logprobs: int | None) -> Sampling:
        given = {
            name: value
            for name in (
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "repeat_last_n",
            )
            if (value := getattr(body, name)) is not None
        }
        if body.top_k is not None:
            given["top_k"] = max(body.top_k, 0)
        return Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,  # OpenAI's default
            seed=None if body.seed == -1 else body.seed,
            logit_bias=self._logit_bias(body.logit_bias or {}),
            logprobs=top_logprobs,
            **given,
        )

    def _logit_bias(self, given: Mapping[str, float]) -> dict[int, float]:
        bias = {int(token): value for token, value in given.items()}
        vocab = self.model.generator.model.vocab_size
        beyond = next((token for token in bias if token >= vocab), None)
        if beyond is not None:
            raise ConfigError(
                f"logit_bias has the key {beyond}: this model's token ids run from 0 to {vocab - 1}",
                field="logit_bias",
            )
        return bias

    def constraint(self, wanted: AnswerConstraint, cancelled: Callable[[], bool]) -> Constraint:
        """The constraint factory for one answer; `cancelled` and errors are those of `GrammarCompiler`."""

        def compiled(grammar: Grammar) -> Constraint:
            if isinstance(grammar, str):
                return self.grammars.gbnf(grammar, field=wanted.field, cancelled=cancelled)
            if isinstance(grammar, CallGrammar):
                return self.grammars.lark(grammar.text, field=wanted.field, cancelled=cancelled)
            return self.grammars.json_schema(grammar, field=wanted.field, cancelled=cancelled)

        try:
            return compiled(wanted.grammar)
        except UnfollowableError as error:
            raise located(error, wanted, compiled) from error


def _limit(given: int | None) -> int | None:
    """Most tokens of an answer; None: as many as the context holds, which llama.cpp's clients write as -1."""
    return None if given == -1 else given


def check_ids(ids: Iterable[int], vocab_size: int, field: str) -> None:
    beyond = next((token for token in ids if token >= vocab_size), None)
    if beyond is not None:
        raise ConfigError(
            f"{field} has the token id {beyond}: ids run from 0 to {vocab_size - 1}", field=field
        )


def _named(error: ContextOverflowError, field: str, context: int) -> ContextOverflowError:
    """With the request's name of the prompt, and the context in place of what a prompt to be counted may have."""
    return ContextOverflowError(error.n_prompt_tokens, context, at_least=error.at_least, field=field)


def _check_stream_options(body: Generation) -> None:
    if body.stream_options is not None and not body.stream:
        raise ConfigError("stream_options needs stream: true", field="stream_options")
    if body.return_progress and not body.stream:
        raise ConfigError("return_progress needs stream: true", field="return_progress")


def _check_end(body: Generation, constraint: AnswerConstraint | None) -> None:
    """Checked before the grammar is compiled, rather than when the request gets it."""
    if body.ignore_eos and constraint is not None:
        raise ConfigError(
            f"ignore_eos cannot be combined with {constraint.field}, whose grammar decides where the answer ends: "
            "leave out one of the two",
            field="ignore_eos",
        )


def _check_choices(body: CompletionRequest, prompts: int) -> None:
    if prompts * body.choices > MOST_CHOICES:
        raise ConfigError(
            f"n answers to each of {prompts} prompts are more than {MOST_CHOICES}: ask for fewer at a time",
            field="n",
        )
    if body.best_of is not None and body.best_of < body.choices:
        raise ConfigError("best_of must not be below n: leave it out", field="best_of")
    if body.echo and body.logprobs is not None:
        raise ConfigError(
            "echo cannot be combined with logprobs: those of the prompt's own tokens are not computed; leave out "
            "one of the two",
            field="echo",
        )


def _template_names(body: ChatRequest) -> dict[str, Any]:
    """The template's variables besides the messages."""
    names = dict(body.chat_template_kwargs or {})
    taken = _RESERVED.intersection(names)
    if taken:
        raise ConfigError(
            f"chat_template_kwargs cannot set {min(taken)}, which the request itself has",
            field="chat_template_kwargs",
        )
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise ConfigError(
                "add_generation_prompt begins a new message, and continue_final_message goes on with the last one: "
                "give one of the two",
                field="add_generation_prompt",
            )
        names["continue_final_message"] = True
    elif body.add_generation_prompt is False:
        raise ConfigError(
            "add_generation_prompt: false needs continue_final_message: true", field="add_generation_prompt"
        )
    if body.tools and body.tool_choice != "none":
        names["tools"] = [
            tool.model_dump(exclude={"cache_control"}, exclude_none=True) for tool in body.tools
        ]
    return names


def _message(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates know: text as one string, arguments of calls as objects."""
    fields = message.model_dump(include=_TOLD, exclude_none=True)
    if fields["role"] == "developer":
        fields["role"] = "system"  # templates know only the older name
    if isinstance(message.content, list):
        fields["content"] = "".join(content_part.text for content_part in message.content)
    if isinstance(message, AssistantMessage):
        if message.thoughts is not None:
            fields["reasoning_content"] = message.thoughts
        if message.tool_calls:
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
        elif not (message.thoughts or "content" in message.model_fields_set):
            raise InputError("an assistant's message has neither content nor tool_calls: give one of them")
    if not fields.get("tool_calls"):
        fields.setdefault("content", "")  # null: an answer that ended inside its thoughts, or an empty one
    return fields


def _call(call: ToolCall) -> dict[str, Any]:
    function = call.function.model_dump(include={"name", "arguments"})
    with contextlib.suppress(ValueError):
        if isinstance(arguments := parse(function["arguments"]), dict):
            function["arguments"] = sendable(arguments)
    return {"id": call.id, "type": call.type, "function": function}
