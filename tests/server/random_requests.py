"""Random requests for every path of the API: most are by the schema, any combination of parameters may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OFTEN, BADLY, LEAVING = 0.12, 0.03, 0.06  # shares: of each parameter, of bad values, of clients that leave

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, EMBEDDINGS = "/v1/messages", "/v1/embeddings"
ANSWERS = frozenset({CHAT, TEXT, RESPONSES, MESSAGES, EMBEDDINGS})


@dataclass(frozen=True)
class Values:
    """Of one parameter: what it takes, and what it does not take or cannot honour."""

    good: Sequence[Any]
    bad: Sequence[Any] = ()


BOOL = Values([True, False])
JUNK = [None, True, -1, 0, 1.5, "x", "", [], {}, [None], {"a": 1}, 10**30, "\ud800", [[]], "null"]
TEXTS = Values(
    ["Hello.", "x", "é😀\u0000\u2028", "\ufeffHi", "<s></s>", "The quick brown fox. " * 12],
    ["", "\ud800", "x " * 900],
)
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 4, "format": "path"}},
    "required": ["a"],
    "additionalProperties": False,
}
BROKEN = [
    {"type": "object", "enum": [1]},
    {"$ref": "#/nowhere"},
    {"type": "string", "pattern": "("},
    {"type": 5},
]
SCHEMAS = Values(
    [
        OBJECT,
        OBJECT,
        {},
        {"type": "null"},
        {"enum": [1, "a", None]},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3, "uniqueItems": True},
        {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}}},
    ],
    BROKEN,
)
PARAMETERS = Values(
    [OBJECT, OBJECT, {}, {"type": "object", "properties": {"x": {}}}], [[], {"type": "array"}, *BROKEN]
)
GRAMMARS = Values(
    ['root ::= "a" | "b"', "root ::= [a-z]+"], ["root ::= no-such-rule", 'root ::= "a" root', "root"]
)
NAMES, IDS = Values(["f"], ["not a name", ""]), Values(["c1"], ["c2", ""])
PREFILL = Values(
    [
        {"policy": "full"},
        {"chunk_size": 64, "heavy": 16, "local": 8},
        {"quality": "exact"},
        {"quality": "guarded"},
        {"score": "window", "chunk_size": 64, "heavy": 16, "local": 8},
        {"policy": "minference"},
        {"policy": "subquadratic"},
    ],
    [{"chunk_size": 0}, {"heavy": 9999}, {"policy": "none"}, {"quality": "guarded", "score": "colsum"}],
)
LIMIT = Values([0, 1, 6, 20], [-2])
SAMPLING = {
    "temperature": Values([0, 0, 1, 0.3], [101]),
    "top_p": Values([0, 0.5, 1], [2]),
    "top_k": Values([0, 1, 40]),
}
PENALTIES = {
    "min_p": Values([0, 0.2, 1], [-1]),
    "presence_penalty": Values([0, 1, -100]),
    "frequency_penalty": Values([0, 1.5, 100]),
    "repetition_penalty": Values([1, 1.3, 100], [1e-300, 0]),
}
GENERATION = {
    **SAMPLING,
    **PENALTIES,
    "seed": Values([0, 7, -1, 2**40], [-2]),
    "model": Values(["m"], ["\ud800"]),
    "stream": Values([True, True, False]),
    "n": Values([1, 2, 3], [0]),
    "repeat_last_n": Values([0, 5, -1]),
    "stop": Values(["e", ["a", "\n"], [], "}"], [["\ud800"], ""]),
    "logit_bias": Values([{}, {"5": 3}, {"1": -1e6}, {"4095": 1e6}], [{"999999": 1}]),
    "ignore_eos": BOOL,
    "id_slot": Values([-1, 0], [99]),
    "cache_prompt": BOOL,
    "speculate": Values(["auto", "lookup", "mtp", "off"]),
    "prefill": PREFILL,
    "user": Values(["u"]),
    "store": BOOL,
    "skip_special_tokens": Values([True], [False]),
    "wat": Values([None], [1]),
}
STREAMED = {
    "stream_options": Values([{"include_usage": True}, {}, {"include_obfuscation": False}]),
    "return_progress": BOOL,
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
        dice = self._dice
        (path,) = dice.choices([*_BODIES], [weight for weight, _ in _BODIES.values()])
        body: dict[str, Any] = _BODIES[path][1](self)
        if dice.random() < BADLY:
            body[dice.choice([*body, "x"])] = dice.choice(JUNK)
        return Asked(path, body, dice.random() < LEAVING)

    def _one(self, of: Values) -> Any:
        return self._dice.choice(of.bad if of.bad and self._dice.random() < BADLY else of.good)

    def _some(self, of: Mapping[str, Values], share: float = OFTEN) -> dict[str, Any]:
        return {name: self._one(values) for name, values in of.items() if self._dice.random() < share}

    def _of(self, *choices: Any) -> Any:
        return self._dice.choice(choices)

    def _generation(self, constraints: Mapping[str, Values]) -> dict[str, Any]:
        """Parameters of both kinds of completion, with one constraint at most, or now and then with two."""
        body = self._some(GENERATION)
        if body.get("stream"):
            body |= self._some(STREAMED, 0.3)
        for _ in range(self._of(0, 0, 1, 1, 1, 2 if self._dice.random() < 0.1 else 1)):
            name = self._of(*constraints)
            body[name] = self._one(constraints[name])
        return body

    def _chat(self) -> dict[str, Any]:
        formats = [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": self._one(SCHEMAS)}},
        ]
        constraints = {
            "response_format": Values(formats),
            "json_schema": SCHEMAS,
            "grammar": GRAMMARS,
            "tools": Values([self._functions()], [[*self._functions(), *self._functions()]]),
        }
        choices = ["auto", "none", "required", "required", {"type": "function", "function": {"name": "f"}}]
        more = {
            "parallel_tool_calls": BOOL,
            "chat_template_kwargs": Values([{}, {"enable_thinking": False}, {"x": [1]}], [{"tools": []}]),
            "continue_final_message": BOOL,
            "max_completion_tokens": Values([5]),
        }
        body = {"messages": self._talk(), **self._generation(constraints), **self._some(more, 0.06)}
        if "tools" in body:
            body["tool_choice"] = self._of(*choices)
        if self._dice.random() < OFTEN:
            body |= {"logprobs": True, "top_logprobs": self._one(Values([0, 3, 20], [21]))}
        return body if "max_completion_tokens" in body else body | {"max_tokens": self._one(LIMIT)}

    def _talk(self) -> list[Any]:
        """Turns, of which some have calls and their results."""
        talk: list[dict[str, Any]] = []
        if self._dice.random() < 0.3:
            talk.append({"role": self._of("system", "developer"), "content": self._one(TEXTS)})
        for _ in range(self._dice.randint(0, 2)):
            talk += [{"role": "user", "content": self._content("text")}, *self._answer()]
        bad = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, {"role": "assistant"}]
        talk.append(self._one(Values([{"role": "user", "content": self._content("text")}], bad)))
        return talk + (self._answer()[:1] if self._dice.random() < 0.1 else [])

    def _answer(self) -> list[dict[str, Any]]:
        text = self._one(TEXTS)
        if self._dice.random() < 0.6:
            return [
                {
                    "role": "assistant",
                    "content": text,
                    self._of("reasoning_content", "reasoning"): self._of(text, None),
                }
            ]
        arguments = self._of('{"a": 1}', "{", "[]", "")
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        result = {"role": "tool", "tool_call_id": self._one(IDS), "content": self._content("text")}
        return [{"role": "assistant", "content": self._of(text, None), "tool_calls": [call]}, result]

    def _content(self, kind: str) -> Any:
        text = self._one(TEXTS)
        return self._of(text, text, [{"type": kind, "text": text}])

    def _functions(self) -> list[dict[str, Any]]:
        names = [self._one(NAMES), "g"][: self._of(1, 2)]
        return [
            {"type": "function", "function": {"name": name, "parameters": self._one(PARAMETERS)}}
            for name in names
        ]

    def _text(self) -> dict[str, Any]:
        ids = [self._dice.randrange(4096) for _ in range(self._dice.randint(1, 40))]
        texts = [self._one(TEXTS), self._one(TEXTS)]
        prompts = Values([*texts, ids, texts, [ids, [5]]], [[], [4096], [ids, "x"]])
        body = {"prompt": self._one(prompts), "max_tokens": self._one(LIMIT)}
        body |= self._generation({"json_schema": SCHEMAS, "grammar": GRAMMARS})
        return body | self._of({}, {"logprobs": self._one(Values([0, 3, 20], [21]))}, {"echo": True})

    def _response(self) -> dict[str, Any]:
        schema = {"type": "json_schema", "name": "x", "schema": self._one(SCHEMAS)}
        more = {
            **SAMPLING,
            **PENALTIES,
            "instructions": TEXTS,
            "stream": BOOL,
            "parallel_tool_calls": BOOL,
            "prefill": PREFILL,
            "store": Values([False]),
            "reasoning": Values([None], [{"effort": "low"}]),
        }
        body = {"input": self._input(), "max_output_tokens": self._one(LIMIT), **self._some(more)}
        if self._dice.random() < 0.3:
            tools = [{"type": "function", **tool["function"]} for tool in self._functions()]
            choice = self._of("auto", "required", "none", {"type": "function", "name": "f"})
            body |= {"tools": tools, "tool_choice": choice}
        elif self._dice.random() < 0.3:
            body["text"] = {"format": schema}
        return body

    def _input(self) -> Any:
        text, thought = self._one(TEXTS), {"type": "reasoning_text", "text": self._one(TEXTS)}
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": self._of("{}", "{")}
        result = {"type": "function_call_output", "call_id": self._one(IDS), "output": text}
        asked = {
            "role": "user",
            "content": self._one(Values([self._content("input_text")], [[{"type": "input_image"}]])),
        }
        answer = {"role": "assistant", "content": [{"type": "output_text", "text": text}]}
        thoughts = {"type": "reasoning", "summary": [], "content": [thought]}
        return self._of(
            text,
            [asked],
            [asked, answer, asked],
            [asked, thoughts, call, result],
            [asked, call, result, asked],
        )

    def _count(self) -> dict[str, Any]:
        more = {
            "system": Values([self._one(TEXTS), [{"type": "text", "text": "x"}]]),
            "thinking": Values([{"type": "disabled"}], [{"type": "enabled"}]),
        }
        body = {"messages": self._turns(), **self._some(more)}
        if self._dice.random() < 0.3:
            tools = [{"name": self._one(NAMES), "input_schema": self._one(PARAMETERS)}]
            body |= {"tools": tools, "tool_choice": {"type": self._of("auto", "any", "none")}}
        elif self._dice.random() < 0.3:
            body["output_config"] = {"format": {"type": "json_schema", "schema": self._one(SCHEMAS)}}
        return body

    def _turns(self) -> list[Any]:
        text = self._one(TEXTS)
        use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
        result = {"type": "tool_result", "tool_use_id": self._one(IDS), "content": text}
        image = [{"type": "image", "source": {}}]
        asked = {"role": "user", "content": self._one(Values([self._content("text")], [image]))}
        answer = {"role": "assistant", "content": self._of(text, [{"type": "thinking", "thinking": text}])}
        told = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        return self._of([asked], [asked], [asked, answer, asked], [asked, *told], [asked, answer])

    def _anthropic(self) -> dict[str, Any]:
        more = {
            **SAMPLING,
            "temperature": Values([0, 1, 0.5], [1.5]),
            "stop_sequences": Values([["e"], [], ["}", "a"]]),
            "stream": BOOL,
            "prefill": PREFILL,
        }
        return self._count() | {"max_tokens": self._one(LIMIT), **self._some(more, 0.2)}

    def _embedding(self) -> dict[str, Any]:
        more = {
            "encoding_format": Values(["float", "base64"]),
            "dimensions": Values([256], [3]),
            "prefill": PREFILL,
        }
        texts = [self._one(TEXTS), self._one(TEXTS)]
        return {
            "input": self._one(Values([*texts, texts, [1, 2, 3], [[5]]], [[], [4096]])),
            **self._some(more),
        }

    def _tokenize(self) -> dict[str, Any]:
        return {"content": self._one(TEXTS), **self._some({"add_special": BOOL, "with_pieces": BOOL}, 0.4)}

    def _detokenize(self) -> dict[str, Any]:
        return {"tokens": self._one(Values([[], [1, 2], [4095]], [[4096], [-1]]))}

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
