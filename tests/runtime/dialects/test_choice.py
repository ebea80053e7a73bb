"""The dialect is chosen by what a chat template contains."""

from __future__ import annotations

import pytest

from h2o_runtime.answers.dialects import DIALECTS, choose

# What the families' published templates contain of calls, in a few words.
TEMPLATES = {
    "llama 3": ("json", "<|start_header_id|>{{ role }}<|python_tag|>Environment: ipython"),
    "qwen 3": ("hermes", '<|im_start|>{{ m.role }}<think></think><tool_call>\n{"name": <function-name>}'),
    "smollm2": ("hermes", "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"),
    "qwen3-coder": ("qwen-coder", "<|im_start|><tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>"),
    "glm 4.5": ("glm", "<|observation|><tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key>"),
    "glm 4": ("glm4", "[gMASK]<sop><|observation|>{{ m.content }}"),
    "minimax m2": (
        "minimax",
        '{%- set begin = \'<minimax:tool_call>\' -%}<invoke name="f"><parameter name="x">',
    ),
    "mistral 7b": ("mistral", "[AVAILABLE_TOOLS]{{ tools }}[/AVAILABLE_TOOLS]{{ '[TOOL_CALLS][' }}"),
    "mistral small 3.2": (
        "ministral",
        "{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}",
    ),
    "deepseek r1": (
        "deepseek-r1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ tool.type }}<｜tool▁sep｜>{{ name }}\n```json\n</think>",
    ),
    "deepseek v3.1": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜></think>",
    ),
    "kimi k2": ("kimi", "<|im_assistant|><|tool_calls_section_begin|><|tool_call_begin|>{{ id }}"),
    "phi-4-mini": ("phi4", "<|tool|>{{ m.tools }}<|/tool|><|end|>"),
    "granite 3": ("granite", "<|start_of_role|>{{ m.role }}<|end_of_role|><|tool_call|>"),
    "granite 4": (
        "hermes",
        '<|start_of_role|>assistant<|end_of_role|><tool_call>\n{"name": "f"}</tool_call>',
    ),
    "gemma 3": ("gemma", "<start_of_turn>model\n"),
    "gemma 4": (
        "gemma4",
        "<|turn>model\n<|tool_call>call:{{ name }}{<tool_call|><|channel>thought\n<channel|>",
    ),
    "functiongemma": (
        "functiongemma",
        "<start_of_turn>model\n<start_function_call>call:f{}<end_function_call>",
    ),
    "lfm 2": ("lfm", "<|im_start|>system\nList of tools: <|tool_list_start|>[]<|tool_list_end|>"),
    "olmo 3": ("olmo", "<|im_start|>{{ m.role }}<functions></functions><function_calls></function_calls>"),
    "nemotron nano 2": (
        "nemotron",
        "<SPECIAL_10>System<AVAILABLE_TOOLS></AVAILABLE_TOOLS><TOOLCALL>[]</TOOLCALL>",
    ),
    "seed-oss": ("seed", "<seed:bos><seed:tool_call>\n<function=f>\n<parameter=x>1</parameter></seed:think>"),
    "gpt-oss": ("harmony", "<|start|>assistant<|channel|>analysis<|message|>{{ thinking }}<|end|>"),
}
THINKING = {"qwen 3", "deepseek r1", "deepseek v3.1", "gemma 4", "seed-oss", "gpt-oss"}


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_template_shows_its_dialect(family: str) -> None:
    name, template = TEMPLATES[family]
    dialect = choose(template)
    assert dialect.name == name
    assert dialect.thinks(template) == (family in THINKING)


def test_every_dialect_is_shown_by_a_template() -> None:
    assert {name for name, _ in TEMPLATES.values()} == set(DIALECTS.names)


@pytest.mark.parametrize("template", [None, "", "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_a_template_that_shows_none_has_the_first(template: str | None) -> None:
    assert choose(template).name == DIALECTS.names[0] == "json"
