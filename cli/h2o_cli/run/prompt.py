"""The sources of h2o-run's prompt: a document from a file or standard input, and a question."""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from h2o_cli.common import argument_text
from h2o_runtime.errors import InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import decode_utf8

log = logging.getLogger(__name__)

STDIN = "-"
PATIENCE = 3.0  # seconds in which a pipe that no flag names must begin to send


@dataclass(frozen=True)
class PromptSource:
    """The sources of the prompt; nothing is read before `read`.

    document  a file's path, or "-" for standard input
    question  text that follows the document, or is the prompt
    offered   no flag names standard input: it is the document if it has text
    """

    document: str | None
    question: str | None
    offered: bool = False

    @classmethod
    def of(
        cls, prompt: str | None, file: str | None, argument: str | None, piped: bool = False
    ) -> PromptSource | None:
        """From --prompt, --prompt-file and the bare argument after the bundle, which can only be "-".

        Any of them may be "-" for standard input. It is also the document if none was given and it is `piped`.
        None if there is no prompt; raises click.UsageError if there is more than one document.
        """
        if argument not in (None, STDIN):
            raise click.UsageError(f"unexpected argument '{argument}': give the prompt with --prompt")
        question = None if prompt == STDIN else prompt
        documents = [STDIN for value in (prompt, argument) if value == STDIN]
        documents += [] if file is None else [file]
        if len(documents) > 1:
            raise click.UsageError("more than one document: give one of --prompt-file and - (standard input)")
        if documents:
            return cls(documents[0], question)
        if piped:
            return cls(STDIN, question, offered=question is not None)
        return None if question is None else cls(None, question)

    def read(self) -> str:
        """The document, an empty line, and the question. Raises InputError if one of them is empty, not UTF-8 or
        unreadable.
        """
        parts = []
        if self.offered:
            text = _text_of(_standard_input(), "standard input") if _is_ready() else ""
            parts += [text] if text else []
        elif self.document == STDIN:
            parts.append(_not_empty(_text_of(_standard_input(), "standard input"), "standard input"))
        elif self.document is not None:
            document = _text_of(read_input(Path(self.document)), self.document)
            parts.append(_not_empty(document, self.document))
        if self.question is not None:
            parts.append(_not_empty(argument_text(self.question, "--prompt"), "--prompt"))
        return "\n\n".join(parts)


def is_piped() -> bool:
    """Whether standard input is a pipe or a file: neither a terminal, nor a device such as /dev/null."""
    mode = _mode_of_standard_input()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _mode_of_standard_input() -> int:
    try:
        return os.fstat(sys.stdin.fileno()).st_mode if sys.stdin else 0
    except (OSError, ValueError):
        return 0


def _standard_input() -> bytes:
    return sys.stdin.buffer.read() if sys.stdin else b""


def _is_ready() -> bool:
    """Whether a standard input that no flag names can be read: it sends something, or it has ended.

    A file that somebody has begun to read is not: it is the list of a loop of the shell. Under cron or ssh a pipe
    may be open and never send anything: after some seconds the prompt goes on without it.
    """
    if stat.S_ISREG(_mode_of_standard_input()):
        return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) == 0
    if select.select([sys.stdin], [], [], PATIENCE)[0]:
        return True
    log.warning(
        "standard input is open and sent nothing in %g seconds: it is left out; give - to wait for it, or "
        "</dev/null",
        PATIENCE,
    )
    return False


def _text_of(data: bytes, name: str) -> str:
    """Editors and echo end every text with a newline that is not part of the prompt; drop it."""
    text = decode_utf8(data, name)
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _not_empty(text: str, name: str) -> str:
    if not text:
        raise InputError(f"the prompt is empty: {name} has no text")
    return text
