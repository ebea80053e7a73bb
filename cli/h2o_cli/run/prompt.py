"""The sources of h2o-run's prompt: a document from a file or standard input, and a question."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from h2o_cli.common import argument_text
from h2o_runtime.errors import InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import decode_utf8

STDIN = "-"


@dataclass(frozen=True)
class PromptSource:
    """The sources of the prompt; nothing is read before `read`.

    document  a file's path, or "-" for standard input
    question  text that follows the document, or is the prompt
    """

    document: str | None
    question: str | None

    @classmethod
    def of(
        cls, prompt: str | None, file: str | None, argument: str | None, piped: bool = False
    ) -> PromptSource | None:
        """From --prompt, --prompt-file and the bare argument after the bundle, which can only be "-".

        Any of them may be "-" for standard input, which is also read if nothing was given and it is `piped`.
        None if there is no prompt; raises click.UsageError if there is more than one document.
        """
        if argument not in (None, STDIN):
            raise click.UsageError(f"unexpected argument {argument!r}: give the prompt with --prompt")
        question = None if prompt == STDIN else prompt
        documents = [STDIN for value in (prompt, argument) if value == STDIN]
        documents += [] if file is None else [file]
        if len(documents) > 1:
            raise click.UsageError("more than one document: give one of --prompt-file and - (standard input)")
        if documents or question is not None:
            return cls(documents[0] if documents else None, question)
        return cls(STDIN, None) if piped else None

    def read(self) -> str:
        """The document, an empty line, and the question. Raises InputError if one of them is empty, not UTF-8 or
        unreadable.
        """
        parts = []
        if self.document == STDIN:
            data = sys.stdin.buffer.read() if sys.stdin else b""
            parts.append(_text_of(data, "standard input"))
        elif self.document is not None:
            parts.append(_text_of(read_input(Path(self.document)), self.document))
        if self.question is not None:
            parts.append(_not_empty(argument_text(self.question, "--prompt"), "--prompt"))
        return "\n\n".join(parts)


def is_piped() -> bool:
    """Whether standard input is a pipe or a file: neither a terminal, nor a device such as /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if sys.stdin else 0
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _text_of(data: bytes, name: str) -> str:
    """Editors and echo end every text with a newline that is not part of the prompt; drop it."""
    text = decode_utf8(data, name)
    return _not_empty(text[:-2] if text.endswith("\r\n") else text.removesuffix("\n"), name)


def _not_empty(text: str, name: str) -> str:
    if not text:
        raise InputError(f"the prompt is empty: {name} has no text")
    return text
