"""How one model writes: a dialect, with the chat template and the special tokens of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from h2o_runtime.answers.dialects.answer import Schema
from h2o_runtime.answers.dialects.dialect import Dialect
from h2o_runtime.answers.dialects.lark import Lark, optional
from h2o_runtime.answers.dialects.reader import AnswerReader

BLANK_LINES = r"/\n{0,2}/"  # after thoughts


@dataclass(frozen=True)
class Speech:
    """What is needed to read a model's answers, and to make it write calls.

    thinks   whether answers may begin with thoughts
    special  the dialect's marks that are special tokens: ids by text
    """

    dialect: Dialect
    thinks: bool
    special: Mapping[str, int]

    @classmethod
    def of(cls, dialect: Dialect, template: str | None, special_id: Callable[[str], int | None]) -> Speech:
        """template: the source of the chat template. special_id: the id of a special token."""
        ids = {mark: special_id(mark) for mark in dialect.marks}
        special = {mark: token for mark, token in ids.items() if token is not None}
        return cls(dialect, dialect.thinks(template or ""), special)

    @property
    def shown(self) -> frozenset[int]:
        """Special tokens that the parser has to see."""
        return frozenset(self.special.values())

    def may_think(self, prompt: str) -> bool:
        """Whether an answer to this prompt may begin with thoughts: its end may have ended them already."""
        return self.thinks and not prompt.rstrip().endswith(self.dialect.thinking.end)

    def reader(
        self,
        functions: Mapping[str, Schema],
        prompt: str,
        *,
        thinks: bool = True,
        forced: bool = False,
        only_one: bool = False,
        strict: bool = False,
    ) -> AnswerReader:
        """Reads one answer; arguments are those of `AnswerReader`.

        thinks: whether thoughts are allowed. strict: whether `strict_grammar` holds for the answer.
        """
        return AnswerReader(
            self.dialect.only_marked() if strict else self.dialect,
            functions,
            thinks=self.thinks and thinks,
            prompt=prompt,
            forced=forced,
            only_one=only_one,
            hidden=self.special,
        )

    def call_grammar(self, functions: Mapping[str, Schema], prompt: str) -> str:
        """A grammar of answers that are one call, after thoughts if there may be some."""
        lark = self._lark()
        call = lark.either([self._call(name, schema, lark) for name, schema in functions.items()])
        return lark.grammar(f"{self._thoughts(lark, prompt)} {call}")

    def strict_grammar(self, functions: Mapping[str, Schema], prompt: str) -> str | None:
        """A grammar of any text with any calls of these functions; None if text could not be told from a call."""
        trigger = next((mark for mark in self.dialect.marks if self._begin_with(functions, mark)), None)
        if trigger is None or not self.dialect.marked:
            return None
        lark = self._lark()
        rest = lark.either([self._call(name, schema, lark, trigger) for name, schema in functions.items()])
        token = self.special.get(trigger)
        text = lark.rule("/(.|\\n)*/")
        head = f"{text} <[{token}]>" if token is not None else lark.lazy(trigger)
        return lark.grammar(f"{self._thoughts(lark, prompt)} {lark.rule(f'{head} {rest}')}* {text}")

    def _lark(self) -> Lark:
        return Lark(self.dialect.marks, self.special.get)

    def _begin_with(self, functions: Collection[str], mark: str) -> bool:
        return all(self.dialect.opening(name).startswith(mark) for name in functions)

    def _call(self, name: str, schema: Schema, lark: Lark, trigger: str = "") -> str:
        """trigger: what of the call is written already."""
        dialect = self.dialect
        parts = (
            lark.literal(dialect.opening(name).removeprefix(trigger)),
            dialect.arguments_grammar(schema, lark),
            lark.literal(dialect.closing),
        )
        return " ".join(part for part in parts if part)

    def _thoughts(self, lark: Lark, prompt: str) -> str:
        if not self.may_think(prompt):
            return ""
        marks = self.dialect.thinking
        rest = f"{lark.text_before(marks.end)} {lark.literal(marks.then) or BLANK_LINES}"
        if prompt.rstrip().endswith(marks.begin.rstrip()):
            return rest
        return optional(f"{lark.literal(marks.begin)} {rest}")
