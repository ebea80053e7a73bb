"""Answers to /v1/responses: items, which are thoughts, texts and calls, and the events that build them."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.dialects.answer import CallBegun, Delta, Thought
from h2o_runtime.answers.dialects.reader import AnswerReader
from h2o_runtime.answers.dialects.speech import Speech
from h2o_runtime.answers.request import Prompt
from h2o_server.answers.format import Chunk, extras, usage
from h2o_server.answers.reader import answer_reader
from h2o_server.apis.chat.format import finish_reason
from h2o_server.apis.chat.schema import ChatRequest
from h2o_server.apis.responses.schema import TOOL, ResponseRequest
from h2o_server.http.json_body import sendable
from h2o_server.http.problems import Problem
from h2o_server.scheduling.inference import Progress

Item = dict[str, Any]


class ResponseFormat:
    """One response, which has one choice."""

    done = None

    def __init__(self, body: ResponseRequest, chat: ChatRequest, model: str, speech: Speech) -> None:
        """chat: the translation of `body`. speech: how the model writes thoughts and calls."""
        self.name = f"resp_{secrets.token_hex(24)}"
        self._chat, self._speech = chat, speech
        self._count = itertools.count()
        self._head = {"id": self.name, "object": "response", "created_at": int(time.time()), "model": model}
        self._head |= {"error": None, "incomplete_details": None, **_asked(body)}

    def choice(self, index: int, prompt: Prompt) -> ResponseItems:
        self._items = ResponseItems(self, answer_reader(self._chat, prompt, self._speech))
        return self._items

    def progress(self, progress: Progress, seconds: float) -> Chunk:
        raise AssertionError("no request can ask for it")

    def end(self, completions: Sequence[Completion]) -> Iterable[Chunk]:
        response = self.whole([self._items.items], completions)
        yield self.event(f"response.{response['status']}", response=response)

    def failed(self, problem: Problem) -> Iterable[Chunk]:
        """OpenAI documents the error's members in the event itself, sends them in `error`, and clients read either.
        Some wait for the end of the response."""
        members = {"code": problem.code, "message": problem.message, "param": problem.param}
        yield self.event("error", **members, **problem.body())
        code = "invalid_prompt" if problem.status_code < 500 else "server_error"
        error = {"code": code, "message": problem.message}
        response = {**self.begun(), "status": "failed", "error": error, "output": self._items.broken_off()}
        yield self.event("response.failed", response=response)

    def whole(self, choices: Sequence[list[Item]], completions: Sequence[Completion]) -> Chunk:
        told = usage(completions, 1)
        cut = self._items.cut
        return {
            **self._head,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": choices[0],
            "usage": {
                "input_tokens": told["prompt_tokens"],
                "input_tokens_details": {**told["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": told["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": told["total_tokens"],
            },
            **extras(completions),
        }

    def begun(self) -> dict[str, Any]:
        """The response before it has any content."""
        return {**self._head, "status": "in_progress", "output": [], "usage": None}

    def event(self, kind: str, **members: Any) -> Chunk:
        return {"type": kind, "sequence_number": next(self._count), **members}


class ResponseItems:
    """The items of a response; only the last one is still growing.

    items: the items so far. cut: whether a limit ended the last one; final after `end` or `whole`.
    """

    def __init__(self, response: ResponseFormat, reader: AnswerReader) -> None:
        self.items: list[Item] = []
        self.cut = False
        self._response = response
        self._reader = reader
        self._open = False  # whether the last item may still grow

    def begin(self) -> Iterable[Chunk]:
        for kind in ("response.created", "response.in_progress"):
            yield self._response.event(kind, response=self._response.begun())

    def text_delta(self, delta: TextDelta) -> Iterable[Chunk]:
        yield from self._deltas(self._reader.push(delta.text))

    def end(self, completion: Completion) -> Iterable[Chunk]:
        yield from self._deltas(self._reader.finish())
        if not self.items:
            yield from self._text("")
        self.cut = finish_reason(self._reader, completion) == "length"
        yield from self._close("incomplete" if self.cut else "completed")

    def whole(self, completion: Completion) -> list[Item]:
        for _ in itertools.chain(self._deltas(self._reader.push(completion.text)), self.end(completion)):
            pass
        return self.items

    def broken_off(self) -> list[Item]:
        """The items so far, of which the last one gets no more."""
        if self._open:
            self.items[-1]["status"] = "incomplete"
        return self.items

    def _deltas(self, deltas: Iterable[Delta]) -> Iterable[Chunk]:
        for delta in deltas:
            if isinstance(delta, str):
                yield from self._text(delta)
            elif isinstance(delta, Thought):
                yield from self._thought(delta.text)
            elif isinstance(delta, CallBegun):
                name = {"call_id": delta.id, "name": delta.name, "arguments": ""}
                yield from self._begin({"type": "function_call", **name}, "fc")
            else:
                self.items[-1]["arguments"] += delta.text
                yield self._event("response.function_call_arguments.delta", delta=delta.text)

    def _text(self, text: str) -> Iterable[Chunk]:
        if not self._open or self.items[-1]["type"] != "message":
            yield from self._begin({"type": "message", "role": "assistant", "content": []}, "msg")
            content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._event("response.content_part.added", content_index=0, part=content)
            self.items[-1]["content"] = [dict(content)]
        if text:
            self.items[-1]["content"][0]["text"] += text
            yield self._event("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _thought(self, text: str) -> Iterable[Chunk]:
        if not self._open or self.items[-1]["type"] != "reasoning":
            yield from self._begin({"type": "reasoning", "summary": [], "content": []}, "rs")
            self.items[-1]["content"] = [{"type": "reasoning_text", "text": ""}]
        self.items[-1]["content"][0]["text"] += text
        yield self._event("response.reasoning_text.delta", content_index=0, delta=text)

    def _begin(self, item: Item, prefix: str) -> Iterable[Chunk]:
        yield from self._close("completed")
        self.items.append({"id": f"{prefix}_{secrets.token_hex(24)}", "status": "in_progress", **item})
        self._open = True
        yield self._told("response.output_item.added")

    def _close(self, status: str) -> Iterable[Chunk]:
        """End the last item, if it may still grow."""
        if not self._open:
            return
        self._open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            (content,) = item["content"]
            yield self._event("response.output_text.done", content_index=0, text=content["text"], logprobs=[])
            yield self._event("response.content_part.done", content_index=0, part=content)
        elif item["type"] == "reasoning":
            (content,) = item["content"]
            yield self._event("response.reasoning_text.done", content_index=0, text=content["text"])
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **told)
        yield self._told("response.output_item.done")

    def _told(self, kind: str) -> Chunk:
        """An event with the last item as it is now."""
        return self._response.event(kind, output_index=len(self.items) - 1, item=dict(self.items[-1]))

    def _event(self, kind: str, **members: Any) -> Chunk:
        """An event of the last item's."""
        where = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return self._response.event(kind, **where, **members)


def _asked(body: ResponseRequest) -> dict[str, Any]:
    """The request's members that a response repeats."""
    told = body.model_dump(
        include={"instructions", "max_output_tokens", "temperature", "top_p", "tool_choice"}, by_alias=True
    )
    effort = None if body.reasoning is None else body.reasoning.effort
    text_format = None if body.text is None else body.text.format
    told |= {
        "tools": [tool.model_dump(include=TOOL) for tool in body.tools or ()],
        "tool_choice": told["tool_choice"] or "auto",
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "text": {
            "format": {"type": "text"} if text_format is None else text_format.model_dump(by_alias=True)
        },
        "metadata": body.metadata or {},
        "previous_response_id": None,
        "reasoning": {"effort": effort, "summary": None},
        "truncation": "disabled",
        "store": False,
        "background": False,
    }
    return {name: sendable(value) for name, value in told.items()}
