"""Standard output that cannot be written, as on a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from h2o_runtime.errors import OutputError


def write(text: str) -> None:
    """Text to standard output, at once. Raises as `writing`."""
    with writing():
        click.echo(text, nl=False)


@contextmanager
def writing() -> Iterator[None]:
    """Inside, a failure to write standard output raises OutputError, or BrokenPipeError where its reader left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None:  # a file's
            raise
        abandon(sys.stdout)
        raise OutputError(f"standard output: cannot be written: {error.strerror}") from error


def abandon(stream: TextIO) -> None:
    """Discard what the stream still buffers: Python flushes it at exit and would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
