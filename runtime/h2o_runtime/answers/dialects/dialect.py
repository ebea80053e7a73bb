"""A dialect: how a family of models writes thoughts and calls of functions, to be read and to be enforced."""

from __future__ import annotations

import json
import secrets
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from h2o_runtime.answers.dialects import json_parts
from h2o_runtime.answers.dialects.answer import Answer, Schema
from h2o_runtime.answers.dialects.incoming import Incoming, Wait
from h2o_runtime.answers.dialects.lark import Lark


@dataclass(frozen=True)
class Thinking:
    """The marks around thoughts. then: what is written between them and the answer, other than blanks."""

    begin: str
    end: str
    then: str = ""


@dataclass(frozen=True)
class Dialect(ABC):
    """How a family of models writes.

    name      in `--dialect`
    title     the families
    begins    marks with which a call begins
    dropped   further marks, which are never text
    ends      marks inside of calls and after them
    shown     what chat templates of this dialect all contain
    before    a call's text up to the function's name
    quoted    whether that name is written as JSON
    after     the text between it and the arguments
    closing   the text after the arguments
    thinking  the marks around thoughts, where the chat template has them
    marked    whether the first mark of a call begins nothing but calls
    """

    name: ClassVar[str]
    title: ClassVar[str]
    begins: ClassVar[tuple[str, ...]] = ()
    dropped: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]]
    before: ClassVar[str]
    quoted: ClassVar[bool] = False
    after: ClassVar[str]
    closing: ClassVar[str]
    thinking: ClassVar[Thinking] = Thinking("<think>", "</think>")
    marked: ClassVar[bool] = True

    @classmethod
    def spoken(cls, template: str) -> bool:
        """Whether a chat template shows this dialect."""
        return all(mark in template for mark in cls.shown)

    def opening(self, name: str) -> str:
        """A call's text up to its arguments."""
        written = json.dumps(name, ensure_ascii=False) if self.quoted else name
        return f"{self.before}{written}{self.after}"

    def call(self, text: Incoming, answer: Answer) -> Wait[bool]:
        """Read what follows one of `begins` → whether a call was begun; by default JSON, up to a mark."""
        return json_parts.marked(text, answer, self.ends[0])

    def read(self, text: Incoming, answer: Answer) -> Wait[None]:
        """Read an answer behind its thoughts."""
        marks = self.begins + self.dropped
        while True:
            piece, mark = yield from text.until(*marks)
            answer.text(piece)
            if mark in self.begins:
                yield from tried(text, answer, self.call(text, answer), mark)
            elif mark is None and not piece:
                return

    def only_marked(self) -> Dialect:
        """The same, without calls that no mark shows: a grammar cannot enforce their schemas."""
        return self

    def arguments(self, arguments: Mapping[str, Any]) -> str:
        """Arguments as the model writes them."""
        return json.dumps(arguments, ensure_ascii=False)

    def arguments_grammar(self, schema: Schema, lark: Lark) -> str:
        """A grammar's expression for arguments of this schema."""
        return lark.json(schema)

    def new_id(self) -> str:
        """For a call to which the model gives none."""
        return f"call_{secrets.token_hex(12)}"

    def written(self, name: str, arguments: Mapping[str, Any] | str) -> str:
        """A call as the model writes it. Arguments that are text are no JSON, and stay as they are."""
        text = arguments if isinstance(arguments, str) else self.arguments(arguments)
        return self.opening(name) + text + self.closing

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, of which some may be special tokens."""
        return (*self.begins, *self.dropped, *self.ends, self.thinking.begin, self.thinking.end)

    @classmethod
    def thinks(cls, template: str) -> bool:
        """Whether answers may begin with thoughts, according to a chat template."""
        return cls.thinking.end in template


def tried(text: Incoming, answer: Answer, call: Wait[bool], mark: str = "") -> Wait[bool]:
    """Read a call → whether one was begun. What only looks like a call is text, with the `mark` before it."""
    text.hold()
    begun = yield from call
    held = text.held()
    if begun:
        return True
    answer.text(mark + held)
    if mark + held and not (yield from text.peek()):
        answer.cut = answer.calls > 0
    return False
