"""The source of h2o-run's prompt: a flag, a file, or standard input."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from h2o_cli.common import argument_text
from h2o_runtime.errors import InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import decode_utf8

STDIN = "-"


@dataclass(frozen=True)
class PromptSource:
    """The source of the prompt; nothing is read before `read`.

    kind   "flag": `value` is the prompt itself; "file": its path; "stdin": standard input
    """

    kind: Literal["flag", "file", "stdin"]
    value: str

    @classmethod
    def of(
        cls, prompt: str | None, file: str | None, argument: str | None, piped: bool = False
    ) -> PromptSource | None:
        """From --prompt, --prompt-file and the bare argument after the bundle, which can only be "-".

        Any of them may be "-" for standard input, which is also read if nothing was given and it is `piped`.
        None if there is no prompt; raises click.UsageError if there is more than one.
        """
        if argument not in (None, STDIN):
            raise click.UsageError(f"unexpected argument {argument!r}: give the prompt with --prompt")
        given = [value for value in (prompt, file, argument) if value is not None]
        if len(given) > 1:
            raise click.UsageError(
                "more than one prompt: give one of --prompt, --prompt-file and - (standard input)"
            )
        if not given:
            return cls("stdin", STDIN) if piped else None
        if given[0] == STDIN:
            return cls("stdin", STDIN)
        return cls("flag" if file is None else "file", given[0])

    def read(self) -> str:
        """The prompt. Raises InputError if it is empty, not UTF-8 or unreadable."""
        if self.kind == "flag":
            name, text = "--prompt", argument_text(self.value, "--prompt")
        elif self.kind == "stdin":
            name = "standard input"
            text = _without_newline(decode_utf8(sys.stdin.buffer.read() if sys.stdin else b"", name))
        else:
            name, text = self.value, _without_newline(decode_utf8(read_input(Path(self.value)), self.value))
        if not text:
            raise InputError(f"the prompt is empty: {name} has no text")
        return text


def is_piped() -> bool:
    """Whether standard input is a pipe or a file: neither a terminal, nor a device such as /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode if sys.stdin else 0
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _without_newline(text: str) -> str:
    """Editors and echo end every text with a newline that is not part of the prompt; drop it."""
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
