"""Calls that are written as Python, f(x="y", z=1), alone or in a list. They are read when they are whole."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any

from h2o_runtime.answers.dialects.answer import Answer, Schema
from h2o_runtime.answers.dialects.lark import Lark

MOST = 1 << 16  # characters of a list of calls
_JSON_WORDS = {"true": True, "false": False, "null": None}


def call_all(written: str, answer: Answer) -> bool:
    """Report the calls of a text → whether there were any, and nothing else."""
    found = _calls(written, answer)
    for name, arguments in found:
        answer.begin(name)
        answer.arguments(json.dumps(arguments, ensure_ascii=False))
        answer.end_call()
    return bool(found)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Keyword arguments whose values are JSON: its strings are Python's too, and its words are understood."""
    return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())


def arguments_grammar(schema: Schema, lark: Lark) -> str:
    """Arguments as `arguments_text` writes them."""
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    pairs = [
        (
            f"{lark.literal(f'{key}=')} {lark.json({**member, **shared} if isinstance(member, Mapping) else {})}",
            key in schema.get("required", ()),
        )
        for key, member in schema.get("properties", {}).items()
        if key.isidentifier()
    ]
    return lark.listed(pairs, ", ")


def _calls(written: str, answer: Answer) -> list[tuple[str, dict[str, Any]]]:
    """The calls of a text; none if it has anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown escapes are no fault of ours
            tree = ast.parse(written.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_call(node, answer) for node in nodes]
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return []


def _call(node: ast.expr, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Raises ValueError."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call")
    name = ast.unparse(node.func)
    if name not in answer.functions or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no known function")
    return name, {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)  # sets, bytes and infinite numbers are no arguments
    return value


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("no key of JSON")
    return node.value
