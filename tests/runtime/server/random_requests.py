"""Random requests for every path of the API: most are by the schema, any combination of parameters may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

OFTEN, ODDLY, LEAVING = (
    0.25,
    0.03,
    0.06,
)  # shares: of each parameter, of values of any kind, of clients that leave

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
ANSWERS = frozenset({CHAT, TEXT, RESPONSES, MESSAGES, EMBEDDINGS})

TEXTS = [
    "Hello.",
    "",
    "x",
    "é😀\u0000\u2028",
    "\ufeffHi",
    "\ud800",
    "<s></s>",
    "The quick brown fox. " * 12,
    "x " * 900,
]
JUNK = [None, True, -1, 0, 1.5, "x", "", [], {}, [None], {"a": 1}, 10**30, "\ud800", [[]], "null"]
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 4, "format": "path"}},
    "required": ["a"],
    "additionalProperties": False,
}
SCHEMAS: list[Any] = [
    OBJECT,
    OBJECT,
    {},
    {"type": "null"},
    {"enum": [1, "a", None]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3, "uniqueItems": True},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}}},
    {"type": "object", "enum": [1]},
    {"not": {}},
    {"$ref": "#/nowhere"},
    {"type": "string", "pattern": "("},
    {"type": 5},
]
GRAMMARS = ['root ::= "a" | "b"', "root ::= [a-z]+", "root ::= no-such-rule", 'root ::= "a" root', "root"]
NAMES = ["f", "f", "g", "a.b-c", "not a name"]
IDS = ["c1", "c1", "c2", ""]
PREFILL = [
    {"policy": "full"},
    {"chunk_size": 64, "heavy": 16, "local": 8},
    {"quality": "exact"},
    {"quality": "fast", "score": "colsum"},
    {"score": "window", "chunk_size": 64},
    {"policy": "minference"},
    {"policy": "subquadratic"},
    {"chunk_size": 0},
    {"heavy": 9999},
    {"policy": "none"},
]

SAMPLING: dict[str, list[Any]] = {
    "temperature": [0, 0, 1, 0.3, 2.5],
    "top_p": [0, 0.5, 1],
    "top_k": [0, 1, 40, -1],
    "seed": [0, 7, -1, 2**40],
}
PENALTIES: dict[str, list[Any]] = {
    "min_p": [0, 0.2, 1],
    "presence_penalty": [0, 1, -100],
    "frequency_penalty": [0, 1.5, 100],
    "repetition_penalty": [1, 1.3, 1e-300, 100],
}
GENERATION: dict[str, list[Any]] = {
    **SAMPLING,
    **PENALTIES,
    "model": ["m", "\ud800"],
    "stream": [True, True, False],
    "stream_options": [{"include_usage": True}, {}, {"include_obfuscation": False}],
    "n": [1, 2, 3],
    "repeat_last_n": [0, 5, -1],
    "stop": ["e", ["a", "\n"], [], ["\ud800"], "}"],
    "logit_bias": [{}, {"5": 3}, {"1": -1e6}, {"4095": 1e6}, {"999999": 1}],
    "ignore_eos": [True, False],
    "json_schema": SCHEMAS,
    "grammar": GRAMMARS,
    "id_slot": [-1, 0, 1, 99],
    "cache_prompt": [True, False],
    "speculate": ["lookup", "off"],
    "prefill": PREFILL,
    "return_progress": [True, False],
    "user": ["u"],
    "store": [False, True],
    "skip_special_tokens": [True, False],
    "priority": [0, 1],
    "wat": [1, None],
}


@dataclass(frozen=True)
class Asked:
    """One request. leaves: whether its client closes the connection before the answer."""

    path: str
    body: Any
    leaves: bool


class Draw:
    """One seed's requests."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def request(self) -> Asked:
        dice, paths = self._dice, [*_BODIES]
        path = dice.choices(paths, [weight for weight, _ in _BODIES.values()])[0]
        body: dict[str, Any] = _BODIES[path][1](self)
        for name in [*body]:
            if dice.random() < ODDLY:
                body[name] = dice.choice(JUNK)
        return Asked(path, body, dice.random() < LEAVING)

    def _some(self, of: Mapping[str, list[Any]], share: float = OFTEN) -> dict[str, Any]:
        return {name: self._one(values) for name, values in of.items() if self._dice.random() < share}

    def _one(self, values: list[Any]) -> Any:
        return self._dice.choice(values)

    def _several(self, make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(self._dice.randint(0 if self._dice.random() < 0.05 else 1, most))]

    def _chat(self) -> dict[str, Any]:
        of_chats: dict[str, list[Any]] = {
            "logprobs": [True, True, False],
            "top_logprobs": [0, 3, 20],
            "response_format": [
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "x", "schema": self._one(SCHEMAS)}},
            ],
            "tools": [self._several(self._function), self._several(self._function, 1), []],
            "tool_choice": [*("auto", "none", "required"), {"type": "function", "function": {"name": "f"}}],
            "parallel_tool_calls": [True, False],
            "chat_template_kwargs": [{}, {"enable_thinking": False}, {"tools": []}, {"x": [1]}],
            "reasoning_effort": ["none", "high"],
            "continue_final_message": [True, True, False],
            "add_generation_prompt": [True, False],
            "max_completion_tokens": [5],
        }
        talk = self._several(self._message)
        talk += [self._one([{"role": "user", "content": "Hello."}, *talk])]
        limit = {"max_tokens": self._one([0, 1, 6, 20])}
        return {"messages": talk, **limit, **self._some(GENERATION, 0.12), **self._some(of_chats, 0.15)}

    def _message(self) -> dict[str, Any]:
        text = self._one(TEXTS)
        content = self._one([text, text, text, [{"type": "text", "text": text}], [], None])
        call = {
            "id": self._one(IDS),
            "type": "function",
            "function": {"name": self._one(NAMES), "arguments": self._one(['{"a": 1}', "{", "[]", ""])},
        }
        answer = {"role": "assistant", "content": content}
        kinds: list[dict[str, Any]] = [
            {"role": "system", "content": content},
            {"role": "user", "content": content},
            {"role": "user", "content": text, "name": "n"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            answer,
            {**answer, self._one(["reasoning_content", "reasoning"]): text},
            {**answer, "tool_calls": [call] * self._dice.randint(0, 2)},
            {"role": "tool", "tool_call_id": self._one(IDS), "content": content},
        ]
        return self._one(kinds)

    def _function(self) -> dict[str, Any]:
        function = {"name": self._one(NAMES), "parameters": self._one([OBJECT, OBJECT, None, *SCHEMAS])}
        return {"type": "function", "function": function}

    def _text(self) -> dict[str, Any]:
        ids = [self._dice.randrange(4096) for _ in range(self._dice.randint(0, 40))]
        prompts = [*(self._one(TEXTS),) * 3, ids, self._several(lambda: self._one(TEXTS)), [ids, [5]], [4096]]
        more = {"logprobs": [0, 3, 20], "best_of": [1], "echo": [True, False]}
        limit = {"max_tokens": self._one([0, 1, 6, 20])}
        return {"prompt": self._one(prompts), **limit, **self._some(GENERATION, 0.12), **self._some(more)}

    def _response(self) -> dict[str, Any]:
        more: dict[str, list[Any]] = {
            **SAMPLING,
            **PENALTIES,
            "instructions": TEXTS,
            "stream": [True, False],
            "text": [{}, {"format": {"type": "json_schema", "name": "x", "schema": self._one(SCHEMAS)}}],
            "tools": [[{"type": "function", **self._function()["function"]}], []],
            "tool_choice": ["auto", "required", "none", {"type": "function", "name": "f"}],
            "parallel_tool_calls": [True, False],
            "prefill": PREFILL,
            "store": [False, True],
            "reasoning": [{}, {"effort": "low"}],
        }
        del more["seed"]
        given = self._one([*TEXTS, self._several(self._item)])
        return {"input": given, "max_output_tokens": self._one([0, 1, 6, 20]), **self._some(more, 0.15)}

    def _item(self) -> dict[str, Any]:
        text, call = self._one(TEXTS), self._one(IDS)
        items: list[dict[str, Any]] = [
            {"role": "user", "content": text},
            {"role": "user", "content": [{"type": "input_text", "text": text}]},
            {"role": "user", "content": [{"type": "input_image"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": text}]},
            {"type": "function_call", "call_id": call, "name": self._one(NAMES), "arguments": "{}"},
            {"type": "function_call_output", "call_id": call, "output": text},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]},
        ]
        return self._one(items)

    def _count(self) -> dict[str, Any]:
        tool = {"name": self._one(NAMES), "input_schema": self._one([OBJECT, *SCHEMAS])}
        schema = self._one(SCHEMAS)
        more: dict[str, list[Any]] = {
            "system": [*TEXTS, [{"type": "text", "text": "x"}]],
            "tools": [[tool], [tool, tool], []],
            "tool_choice": [{"type": kind} for kind in ("auto", "any", "none", "tool")],
            "output_config": [{}, {"format": {"type": "json_schema", "schema": schema}}],
            "thinking": [{"type": "disabled"}, {"type": "enabled"}],
        }
        return {"messages": self._several(self._turn), **self._some(more, 0.2)}

    def _turn(self) -> dict[str, Any]:
        text, call = self._one(TEXTS), self._one(IDS)
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": text},
            {"type": "tool_result", "tool_use_id": call, "content": text},
            {"type": "image", "source": {}},
            {"type": "tool_use", "id": call, "name": "f", "input": {"a": 1}},
            {"type": "thinking", "thinking": text},
        ]
        content = self._one([text, text, self._several(lambda: self._one(blocks))])
        return {"role": self._one(["user", "user", "assistant"]), "content": content}

    def _anthropic(self) -> dict[str, Any]:
        more: dict[str, list[Any]] = {
            **SAMPLING,
            "stop_sequences": [["e"], [], ["}", "a"]],
            "stream": [True, False],
            "prefill": PREFILL,
        }
        del more["seed"]
        return self._count() | {"max_tokens": self._one([0, 1, 6, 20]), **self._some(more, 0.2)}

    def _embedding(self) -> dict[str, Any]:
        texts = self._several(lambda: self._one(TEXTS[:-1]))
        more = {"encoding_format": ["float", "base64"], "dimensions": [256, 3], "prefill": PREFILL}
        return {"input": self._one([self._one(TEXTS), texts, [1, 2, 3], [[5], [4096]]]), **self._some(more)}

    def _tokenize(self) -> dict[str, Any]:
        more = {"add_special": [True, False], "with_pieces": [True, False]}
        return {"content": self._one(TEXTS), **self._some(more)}

    def _detokenize(self) -> dict[str, Any]:
        return {"tokens": self._one([[], [1, 2], [4095], [4096], [-1]])}

    def _prefill(self) -> dict[str, Any]:
        return self._some({"prefill": PREFILL}, 0.9)


# Each path's weight, and its body.
_BODIES: dict[str, tuple[int, Callable[[Draw], dict[str, Any]]]] = {
    CHAT: (36, Draw._chat),
    TEXT: (20, Draw._text),
    RESPONSES: (13, Draw._response),
    MESSAGES: (13, Draw._anthropic),
    f"{MESSAGES}/count_tokens": (4, Draw._count),
    EMBEDDINGS: (5, Draw._embedding),
    "/tokenize": (3, Draw._tokenize),
    "/detokenize": (3, Draw._detokenize),
    "/props/prefill": (3, Draw._prefill),
}
