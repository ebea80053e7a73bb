"""Answers to /v1/messages: blocks, which are thoughts, texts and tool uses, and the events that build them."""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.dialects.answer import CallBegun, Delta, Thought
from h2o_runtime.answers.dialects.reader import AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_server.answers.format import Chunk, extras, read_again
from h2o_server.answers.reader import answer_reader
from h2o_server.apis.chat.format import finish_reason
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.http.json_body import parse
from h2o_server.http.problems import MESSAGES, Problem
from h2o_server.scheduling.inference import Progress

Block = dict[str, Any]

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageFormat:
    """One message, which has one choice."""

    done = None

    def __init__(self, chat: ChatRequest, model: str, speech: Speech) -> None:
        """chat: the translated request. speech: how the model writes thoughts and calls."""
        self.name = f"msg_{secrets.token_hex(12)}"
        self._chat, self._speech = chat, speech
        self._head = {"id": self.name, "type": "message", "role": "assistant", "model": model}

    def choice(self, index: int, prompt: Prompt) -> MessageBlocks:
        reader = answer_reader(self._chat, prompt, self._speech)
        self._blocks = MessageBlocks(self, reader, len(prompt.ids))
        return self._blocks

    def progress(self, progress: Progress, seconds: float) -> Chunk:
        raise AssertionError("no request can ask for it")

    def end(self, completions: Sequence[Completion]) -> Iterable[Chunk]:
        delta, told = self._blocks.ending(completions[0]), _usage(completions[0])
        yield {"type": "message_delta", "delta": delta, "usage": told, **extras(completions)}
        yield {"type": "message_stop"}

    def failed(self, problem: Problem) -> Iterable[Chunk]:
        yield problem.body(MESSAGES)

    def whole(self, choices: Sequence[list[Block]], completions: Sequence[Completion]) -> Chunk:
        (content,), (completion,) = choices, completions
        ending, told = self._blocks.ending(completion), _usage(completion)
        return {**self._head, "content": content, **ending, "usage": told, **extras(completions)}

    def is_at_limit(self, completion: Completion) -> bool:
        """Whether the answer has as many tokens as the request allows."""
        limit = self._chat.max_tokens
        return limit is not None and completion.timings.predicted_n >= limit

    def begun(self, prompt_tokens: int) -> Chunk:
        """The message before it has any content."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        message: Chunk = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        return {"type": "message_start", "message": message | {"usage": usage}}


class MessageBlocks:
    """The blocks of a message; only the last one is still growing.

    blocks: the blocks so far; a tool use has its input as text until the message is complete
    """

    def __init__(self, message: MessageFormat, reader: AnswerReader, prompt_tokens: int) -> None:
        self.blocks: list[Block] = []
        self._prompt_tokens = prompt_tokens
        self._message = message
        self._reader = reader
        self._open = False  # whether the last block may still grow

    def begin(self) -> Iterable[Chunk]:
        yield self._message.begun(self._prompt_tokens)

    def text_delta(self, delta: TextDelta) -> Iterable[Chunk]:
        yield from self._deltas(self._reader.push(delta.text))

    def end(self, completion: Completion) -> Iterable[Chunk]:
        yield from self._deltas(self._reader.finish())
        yield from self._close()

    def whole(self, completion: Completion) -> list[Block]:
        for _ in itertools.chain(self._deltas(self._reader.push(completion.text)), self.end(completion)):
            pass
        return [
            block | {"input": _object(block["input"])} if block["type"] == "tool_use" else block
            for block in self.blocks
        ]

    def ending(self, completion: Completion) -> dict[str, Any]:
        """The reason why the message ended. At the end of the context clients shorten the conversation."""
        reason = _REASONS[finish_reason(self._reader, completion)]
        if completion.finish_reason == "length" and not self._message.is_at_limit(completion):
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        if reason == "end_turn" and completion.stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop}
        return {"stop_reason": reason, "stop_sequence": None}

    def _deltas(self, deltas: Iterable[Delta]) -> Iterable[Chunk]:
        for delta in deltas:
            if isinstance(delta, str):
                if delta:
                    yield from self._text(delta)
            elif isinstance(delta, Thought):
                yield from self._thought(delta.text)
            elif isinstance(delta, CallBegun):
                use = {"type": "tool_use", "id": _use_id(delta.id), "name": delta.name}
                yield from self._begin(use | {"input": ""}, use | {"input": {}})
            else:
                self.blocks[-1]["input"] += delta.text
                yield self._delta({"type": "input_json_delta", "partial_json": delta.text})

    def _text(self, text: str) -> Iterable[Chunk]:
        if not self._open or self.blocks[-1]["type"] != "text":
            empty = {"type": "text", "text": ""}
            yield from self._begin(dict(empty), empty)
        self.blocks[-1]["text"] += text
        yield self._delta({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> Iterable[Chunk]:
        """Append to a block of thoughts."""
        if not self._open or self.blocks[-1]["type"] != "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield from self._begin(dict(empty), empty)
        self.blocks[-1]["thinking"] += text
        yield self._delta({"type": "thinking_delta", "thinking": text})

    def _begin(self, block: Block, told: Block) -> Iterable[Chunk]:
        yield from self._close()
        self.blocks.append(block)
        self._open = True
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": told}

    def _close(self) -> Iterable[Chunk]:
        """End the last block, if it may still grow."""
        if self._open:
            self._open = False
            if self.blocks[-1]["type"] == "thinking":
                signature = _signature(self.blocks[-1]["thinking"])
                self.blocks[-1]["signature"] = signature
                yield self._delta({"type": "signature_delta", "signature": signature})
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> Chunk:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _use_id(id: str) -> str:
    """As Anthropic writes ids; those with which a model's dialect has plans stay."""
    return f"toolu_{id.removeprefix('call_')}" if id.startswith("call_") else id


def _usage(completion: Completion) -> dict[str, int]:
    """Anthropic counts cached tokens separately from those that were read."""
    timings = completion.timings
    return {
        "input_tokens": timings.prompt_n,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": timings.cache_n,
        **read_again([completion]),
        "output_tokens": timings.predicted_n,
    }


def _signature(thinking: str) -> str:
    """Some clients drop thoughts that have none. It proves nothing, and nobody checks it."""
    return hashlib.sha256(thinking.encode()).hexdigest()


def _object(text: str) -> Any:
    """A tool's input; empty if it is no whole object of JSON."""
    try:
        value = parse(text)
        sendable = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    except ValueError:
        return {}
    return json.loads(sendable) if isinstance(value, dict) else {}
