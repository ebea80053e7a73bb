"""Grammars of calls, in llguidance's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from h2o_runtime.answers.dialects.answer import Schema
from h2o_runtime.errors import ConfigError

# Small models tend to fill an answer with blanks, which flexible whitespace would allow endlessly. If members
# of a `oneOf` overlap, an answer follows at least one of them, because llguidance cannot count matches.
COMPACT: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}

_LONGEST = 1 << 19  # characters; a schema that refers to itself several times could make endlessly many


class Lark:
    """Builds one grammar: expressions of its methods are put together, and `grammar` is the whole."""

    def __init__(self, marks: Collection[str], token_of: Callable[[str], int | None]) -> None:
        """marks: those that may be special tokens. token_of: the id of a special token, None for other texts."""
        self._token_of = token_of
        ordered = sorted((mark for mark in marks if token_of(mark) is not None), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._rules: list[str] = []
        self._length = 0

    def literal(self, text: str) -> str:
        """This text, in which special tokens are themselves."""
        parts, at = [], 0
        for found in self._marks.finditer(text):
            parts += [_quoted(text[at : found.start()]), f"<[{self._token_of(found[0])}]>"]
            at = found.end()
        return " ".join(part for part in (*parts, _quoted(text[at:])) if part)

    def json(self, schema: Schema) -> str:
        """One JSON value of a schema. Raises ConfigError as `rule` does."""
        return self._counted(f"%json {json.dumps({**schema, 'x-guidance': COMPACT})}")

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
        """The name of a new rule. Raises ConfigError for a grammar that gets too long."""
        name = f"part{len(self._rules)}"
        self._rules.append(self._counted(f"{name}{options}: {body}"))
        return name

    def _counted(self, text: str) -> str:
        self._length += len(text)
        if self._length > _LONGEST:
            raise ConfigError(
                "the tools' parameters make too long a grammar: leave out definitions that refer to themselves, or "
                "let tool_choice be auto without strict",
                field="tools",
            )
        return text

    def either(self, bodies: Collection[str]) -> str:
        return f"({' | '.join(map(self.rule, bodies))})"

    def listed(self, parts: Sequence[tuple[str, bool]], separator: str) -> str:
        """Parts in this order, with separators; of each whether it must be there."""
        first = rest = '""'  # the parts from one on: the first ones, or those behind another
        for part, needed in reversed(parts):
            here, behind = self.rule(f"{part} {rest}"), self.rule(f"{_quoted(separator)} {part} {rest}")
            first = here if needed else self.rule(f"{here} | {first}")
            rest = behind if needed else self.rule(f"{behind} | {rest}")
        return first

    def grammar(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules])


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""


def optional(body: str) -> str:
    return f"({body})?"
