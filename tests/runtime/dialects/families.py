"""Answers of families of models as their documentation and their templates show them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from h2o_runtime.answers.dialects import DIALECTS
from h2o_runtime.answers.dialects.answer import Arguments, CallBegun, Thought
from h2o_runtime.answers.dialects.reader import AnswerReader

FUNCTIONS: dict[str, Any] = {
    "get_time": {"type": "object", "properties": {"city": {"type": "string"}, "hours": {"type": "integer"}}},
    "g.h": {"type": "object", "properties": {}},
}
Calls = list[tuple[str, str]]

OSLO = ("get_time", '{"city": "Oslo"}')
_JSON = '{"name": "get_time", "arguments": {"city": "Oslo"}}'

# By family: the dialect, an answer, and its thoughts, text and calls.
FAMILIES: dict[str, tuple[str, str, str, str, Calls]] = {
    "llama 3": ("json", '{"name": "get_time", "parameters": {"city": "Oslo"}}', "", "", [OSLO]),
    "llama 3, text before": (
        *("json", 'I will look.\n{"name": "get_time", "parameters": {"city": "Oslo"}}'),
        *("", "I will look.", [OSLO]),
    ),
    "qwen 2.5": (
        *("hermes", f"Let me see.\n<tool_call>\n{_JSON}\n</tool_call>\n<tool_call>\n{_JSON}\n</tool_call>"),
        *("", "Let me see.", [OSLO, OSLO]),
    ),
    "qwen 3": (
        *("hermes", f"<think>\nOslo?\n</think>\n\n<tool_call>\n{_JSON}\n</tool_call>"),
        *("Oslo?", "", [OSLO]),
    ),
    "qwen 2.5 coder, code": (
        "hermes",
        f"I look.\n```json\n{_JSON}\n```\nWait.",
        "",
        "I look.\nWait.",
        [OSLO],
    ),
    "qwen 2.5 coder, a list": ("hermes", f"```json\n[{_JSON},\n{_JSON}]\n```", "", "", [OSLO, OSLO]),
    "qwen 2.5 coder, no marks": ("hermes", f"{_JSON}\n", "", "", [OSLO]),
    "qwen 2.5 coder, an example": (
        *("hermes", '```json\n{"name": "get_time"}\n```', "", '```json\n{"name": "get_time"}\n```', []),
    ),
    "smollm2": ("hermes", f"<tool_call>[\n{_JSON},\n{_JSON}\n]</tool_call>", "", "", [OSLO, OSLO]),
    "qwen3-coder": (
        "qwen-coder",
        "<tool_call>\n<function=get_time>\n<parameter=city>\nOslo\n</parameter>\n<parameter=hours>\n12\n"
        "</parameter>\n</function>\n</tool_call>",
        *("", "", [("get_time", '{"city": "Oslo", "hours": 12}')]),
    ),
    "glm 4.5": (
        "glm",
        "<think>Oslo?</think>\n<tool_call>get_time\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "</tool_call>",
        *("Oslo?", "", [OSLO]),
    ),
    "glm 4.7": (
        "glm",
        "<tool_call>get_time<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>",
        *("", "", [OSLO]),
    ),
    "glm 4": ("glm4", 'get_time\n{"city": "Oslo"}', "", "", [OSLO]),
    "minimax m2": (
        "minimax",
        '<minimax:tool_call>\n<invoke name="get_time">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
        '<invoke name="g.h">\n</invoke>\n</minimax:tool_call>',
        *("", "", [OSLO, ("g.h", "{}")]),
    ),
    "mistral": ("mistral", f"[TOOL_CALLS][{_JSON}]", "", "", [OSLO]),
    "mistral with ids": (
        *("mistral", f'[TOOL_CALLS] [{_JSON[:-1]}, "id": "a1b2c3d4e"}}, {_JSON}]', "", "", [OSLO, OSLO]),
    ),
    "ministral 3": (
        "ministral",
        '[THINK]Oslo?[/THINK]Wait.[TOOL_CALLS]get_time[ARGS]{"city": "Oslo"}[TOOL_CALLS]g.h[ARGS]{}',
        *("Oslo?", "Wait.", [OSLO, ("g.h", "{}")]),
    ),
    "mistral small 3.2": (
        *("ministral", '[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}', "", "", [OSLO]),
    ),
    "deepseek r1": (
        "deepseek-r1",
        "<think>\nOslo?\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n"
        '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g.h\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        *("Oslo?", "", [OSLO, ("g.h", "{}")]),
    ),
    "deepseek v3.1": (
        "deepseek",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>"
        '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        *("", "I look.", [OSLO]),
    ),
    "kimi k2": (
        "kimi",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
        '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_call_begin|>functions.g.h:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        *("", "I look.", [OSLO, ("g.h", "{}")]),
    ),
    "phi-4-mini": ("phi4", f"<|tool_call|>[{_JSON}]<|/tool_call|>", "", "", [OSLO]),
    "phi-4-mini, nested": (
        *("phi4", f'functools[{{"type": "function", "function": {_JSON}}}]', "", "", [OSLO]),
    ),
    "granite 3": (
        *("granite", f"<think>Oslo?</think><response>I look.</response><|tool_call|>[{_JSON}, {_JSON}]"),
        *("Oslo?", "I look.", [OSLO, OSLO]),
    ),
    "gemma 3": (
        *("gemma", '```json\n{"name": "get_time", "parameters": {"city": "Oslo"}}\n```', "", "", [OSLO]),
    ),
    "gemma 3, python": ("gemma", 'Yes.\n```tool_code\nget_time(city="Oslo")\n```', "", "Yes.", [OSLO]),
    "lfm 2": (
        "lfm",
        "<|tool_call_start|>[get_time(city='Oslo'), g.h()]<|tool_call_end|>I look.",
        *("", "I look.", [OSLO, ("g.h", "{}")]),
    ),
    "lfm 2, json": ("lfm", f"<|tool_call_start|>[{_JSON}]<|tool_call_end|>", "", "", [OSLO]),
    "olmo 3": (
        "olmo",
        "<function_calls>\nget_time(city='Oslo')\ng.h()\n</function_calls>",
        *("", "", [OSLO, ("g.h", "{}")]),
    ),
    "seed-oss": (
        "seed",
        "<seed:think>Oslo?</seed:think>\n<seed:tool_call>\n<function=get_time>\n<parameter=city>Oslo</parameter>\n"
        "<parameter=hours>12</parameter>\n</function>\n</seed:tool_call>",
        *("Oslo?", "", [("get_time", '{"city": "Oslo", "hours": 12}')]),
    ),
    "nemotron nano 2": ("nemotron", f"<TOOLCALL>[{_JSON}, {_JSON}]</TOOLCALL>", "", "", [OSLO, OSLO]),
    "gemma 4": (
        "gemma4",
        '<|channel>thought\nOslo?<channel|>I look.<|tool_call>call:get_time{city:<|"|>Oslo<|"|>,hours:12}'
        '<tool_call|><|tool_call>call:g.h{x:[{a:true},<|"|>,<|"|>]}<tool_call|>',
        *("Oslo?", "I look."),
        [("get_time", '{"city": "Oslo", "hours": 12}'), ("g.h", '{"x": [{"a": true}, ","]}')],
    ),
    "functiongemma": (
        "functiongemma",
        "<start_function_call>call:get_time{city:<escape>Oslo<escape>}<end_function_call>",
        *("", "", [OSLO]),
    ),
    "gpt-oss": (
        "harmony",
        "<|channel|>analysis<|message|>Oslo?<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|>',
        *("Oslo?", "I look.", [OSLO]),
    ),
    "gpt-oss, recipient first": (
        "harmony",
        "<|channel|>analysis<|message|>Oslo?<|end|><|start|>assistant to=functions.get_time<|channel|>commentary "
        'json<|message|>{"city": "Oslo"}<|call|>',
        *("Oslo?", "", [OSLO]),
    ),
    "gpt-oss, answer": (
        "harmony",
        "<|channel|>analysis<|message|>Two and two.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
        *("Two and two.", "Four.", []),
    ),
}


def read(
    dialect: str, *pieces: str, functions: Collection[str] = tuple(FUNCTIONS), **options: Any
) -> tuple[str, str, Calls, bool]:
    """Thoughts, text, names and arguments of the calls, and whether the last one was cut."""
    known = {name: FUNCTIONS.get(name, {"type": "object"}) for name in functions}
    reader = AnswerReader(DIALECTS[dialect](), known, **options)
    parts = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
    begun = [part for part in parts if isinstance(part, CallBegun)]
    assert [call.index for call in begun] == list(range(reader.calls))
    assert len({call.id for call in begun}) == len(begun)
    arguments = [""] * len(begun)
    for part in parts:
        if isinstance(part, Arguments):
            arguments[part.index] += part.text
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    text = "".join(part for part in parts if isinstance(part, str))
    calls = [(call.name, json_of) for call, json_of in zip(begun, arguments, strict=True)]
    return thoughts, text, calls, reader.cut
