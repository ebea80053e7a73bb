"""From what a client sent to what the runtime answers. Runs in the text thread; errors are the runtime's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from h2o_runtime.completion import Prompt, Request, TextModel
from h2o_runtime.config import PrefillConfig
from h2o_runtime.constraint import Constraint
from h2o_runtime.errors import BundleError, ConfigError, ContextOverflowError, InputError
from h2o_runtime.grammar import GrammarCompiler
from h2o_runtime.sampling import Sampling
from h2o_runtime.server.json_body import parse
from h2o_runtime.server.schemas.chat import (
    AssistantMessage,
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    Tool,
    ToolChoice,
)
from h2o_runtime.server.schemas.completion import CompletionRequest
from h2o_runtime.server.schemas.generation import Generation
from h2o_runtime.server.schemas.prefill import Prefill
from h2o_runtime.server.tools import call_schema

log = logging.getLogger(__name__)

_RESERVED = {"messages", "tools", "add_generation_prompt", "documents"}


@dataclass(frozen=True)
class RequestBuilder:
    """Makes runtime requests for one model. prefill: what requests override."""

    model: TextModel
    grammars: GrammarCompiler
    prefill: PrefillConfig

    def chat(self, body: ChatRequest) -> Request:
        """Raises ConfigError, ContextOverflowError."""
        _check_stream_options(body)
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise ConfigError(
                "max_tokens is the old name of max_completion_tokens: give one of the two", field="max_tokens"
            )
        if body.top_logprobs and not body.logprobs:
            raise ConfigError("top_logprobs needs logprobs: true", field="top_logprobs")
        prompt = self._chat_prompt(body)
        limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        top = (body.top_logprobs or 0) if body.logprobs else None
        return self._request(body, prompt, limit, top)

    def _chat_prompt(self, body: ChatRequest) -> Prompt:
        try:
            messages = [_message(message) for message in body.messages]
            return self.model.chat_prompt(messages, **_template_names(body))
        except InputError as error:
            raise ConfigError(f"messages: {error}", field="messages") from error
        except BundleError as error:  # which tells of this machine's folders
            log.error("%s", error)
            raise ConfigError(
                "messages need a chat template, and this model has none that can be used: give /v1/completions "
                "a prompt",
                field="messages",
            ) from error

    def completion(self, body: CompletionRequest) -> Request:
        """Errors are those of `chat`."""
        _check_stream_options(body)
        given = body.single()
        try:
            prompt = self.model.text_prompt(given) if isinstance(given, str) else Prompt(tuple(given))
        except InputError as error:
            raise ConfigError(f"prompt: {error}", field="prompt") from error
        limit = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default
        return self._request(body, prompt, limit, body.logprobs)

    def prefill_config(self, given: Prefill | None) -> PrefillConfig:
        """The server's configuration with what the request overrides."""
        if given is None:
            return self.prefill
        values = {name: value for name, value in given.model_dump().items() if value is not None}
        try:
            return PrefillConfig(**(asdict(self.prefill) | values))
        except ConfigError as error:
            raise ConfigError(f"prefill: {error}", field=f"prefill.{error.field}") from error

    def _request(
        self,
        body: Generation,
        prompt: Prompt,
        max_tokens: int | None,
        top_logprobs: int | None,
    ) -> Request:
        self._check_prompt(prompt)
        if top_logprobs is not None:
            self.grammars.token_bytes(0)  # finds out here, rather than after a stream has begun
        stop = [body.stop] if isinstance(body.stop, str) else body.stop
        return Request(
            prompt,
            max_tokens=max_tokens,
            prefill=self.prefill_config(body.prefill),
            sampling=self._sampling(body, top_logprobs),
            stop=tuple(stop or ()),
            ignore_eos=bool(body.ignore_eos),
        )

    def _check_prompt(self, prompt: Prompt) -> None:
        """What the runtime would find out only after a stream has begun."""
        generator = self.model.generator
        if len(prompt.ids) > generator.context:
            raise ContextOverflowError(len(prompt.ids), generator.context)
        beyond = next((token for token in prompt.ids if token >= generator.model.vocab_size), None)
        if beyond is not None:
            raise ConfigError(
                f"prompt has the token id {beyond}: ids run from 0 to {generator.model.vocab_size - 1}",
                field="prompt",
            )

    def _sampling(self, body: Generation, top_logprobs: int | None) -> Sampling:
        given = {
            name: value
            for name in (
                "top_k",
                "top_p",
                "min_p",
                "repetition_penalty",
                "presence_penalty",
                "frequency_penalty",
                "repeat_last_n",
            )
            if (value := getattr(body, name)) is not None
        }
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

    def chat_constraint(self, body: ChatRequest, cancelled: Callable[[], bool]) -> Constraint | None:
        """What the answer has to follow. cancelled: as of `GrammarCompiler.json_schema`, as are the errors."""
        asked = self._chat_schema(body)
        return asked and self.grammars.json_schema(asked[0], field=asked[1], cancelled=cancelled)

    def _chat_schema(self, body: ChatRequest) -> tuple[Mapping[str, Any], str] | None:
        """The schema of the answer, and the field that asks for it."""
        tools, field = _forced_tools(body), "tools"
        if tools:
            if isinstance(body.response_format, (JsonObjectFormat, JsonSchemaFormat)):
                raise ConfigError(
                    "response_format cannot be honoured when tool_choice asks for a call",
                    field="response_format",
                )
            return call_schema(tools), field
        if isinstance(body.response_format, JsonObjectFormat):
            return {"type": "object"}, "response_format"
        if isinstance(body.response_format, JsonSchemaFormat):
            schema = body.response_format.json_schema.schema_ or {"type": "object"}
            return schema, "response_format.json_schema.schema"
        return None


def _check_stream_options(body: Generation) -> None:
    if body.stream_options is not None and not body.stream:
        raise ConfigError("stream_options needs stream: true", field="stream_options")
    if body.return_progress and not body.stream:
        raise ConfigError("return_progress needs stream: true", field="return_progress")


def _forced_tools(body: ChatRequest) -> list[Tool]:
    """The tools of which the answer must call one; empty when it is free."""
    if body.tool_choice is None or body.tool_choice in ("none", "auto"):
        return []
    if not body.tools:
        raise ConfigError("tool_choice asks for a call, and tools is empty", field="tool_choice")
    if isinstance(body.tool_choice, ToolChoice):
        name = body.tool_choice.function.name
        chosen = [tool for tool in body.tools if tool.function.name == name]
        if not chosen:
            raise ConfigError(f"tool_choice names {name!r}, which is not in tools", field="tool_choice")
        return chosen
    return body.tools


def _template_names(body: ChatRequest) -> dict[str, Any]:
    """What the chat template sees beside the messages."""
    names = dict(body.chat_template_kwargs or {})
    taken = _RESERVED.intersection(names)
    if taken:
        raise ConfigError(
            f"chat_template_kwargs cannot set {min(taken)}, which the request itself has",
            field="chat_template_kwargs",
        )
    if body.tools and body.tool_choice != "none":
        names["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
    return names


def _message(message: Message) -> dict[str, Any]:
    """A message as chat templates know it: text as one string, arguments of calls as objects."""
    plain = message.model_dump(include={"role", "content", "name", "tool_call_id"}, exclude_none=True)
    if plain["role"] == "developer":
        plain["role"] = "system"  # templates know only the older name
    if isinstance(message.content, list):
        plain["content"] = "".join(part.text for part in message.content)
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            plain["tool_calls"] = [_call(call.model_dump()) for call in message.tool_calls]
        elif message.content is None:
            raise InputError("an assistant's message has neither content nor tool_calls: give one of them")
    return plain


def _call(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = parse(call["function"]["arguments"])
    except ValueError:
        return call
    if isinstance(arguments, dict):
        call["function"]["arguments"] = arguments
    return call
