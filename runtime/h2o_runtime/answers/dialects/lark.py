"""Grammars of calls, in llguidance's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from h2o_runtime.answers.dialects.answer import Schema
from h2o_runtime.answers.grammar_process import COMPACT


class Lark:
    """Builds one grammar: expressions of its methods are put together, and `grammar` is the whole."""

    def __init__(self, marks: Collection[str], token_of: Callable[[str], int | None]) -> None:
        """marks: those that may be special tokens. token_of: the id of a special token, None for other texts."""
        self._token_of = token_of
        ordered = sorted(marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """This text, in which special tokens are themselves."""
        parts, at = [], 0
        for found in self._marks.finditer(text):
            if (token := self._token_of(found[0])) is not None:
                parts += [_quoted(text[at : found.start()]), f"<[{token}]>"]
                at = found.end()
        return " ".join(part for part in (*parts, _quoted(text[at:])) if part)

    def json(self, schema: Schema) -> str:
        """One JSON value of a schema."""
        return f"%json {json.dumps({**schema, 'x-guidance': COMPACT})}"

    def text_before(self, mark: str) -> str:
        """Any text without the mark, and the mark."""
        token = self._token_of(mark)
        if token is not None:
            return f"/(.|\\n)*/ <[{token}]>"
        return self.rule("/(.|\\n)*/", f"[suffix={json.dumps(mark)}]")

    def lazy(self, mark: str) -> str:
        """Any text up to the first such mark, which is no special token."""
        return self.rule(f"/(.|\\n)*/ {_quoted(mark)}", "[lazy]")

    def rule(self, body: str, options: str = "") -> str:
        """The name of a new rule."""
        name = f"part{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def either(self, bodies: Collection[str]) -> str:
        return f"({' | '.join(map(self.rule, bodies))})"

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


def optional(body: str) -> str:
    return f"({body})?"
