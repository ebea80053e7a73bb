"""One request on the screen: a bar or lines while the prompt is read, then the answer as it is generated."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from io import TextIOWrapper
from typing import TextIO

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from h2o_cli import common, streams
from h2o_cli.progress import told_in_log
from h2o_cli.run.report import little_to_save, summary, work
from h2o_cli.stopping import Stop
from h2o_runtime import Watch
from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import ContextOverflowError
from h2o_runtime.text_model import TextModel

log = logging.getLogger(__name__)

_PATIENCE = 0.25  # seconds of prefill after which a bar is shown
_CONTROL = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def is_terminal(stream: TextIO | None) -> bool:
    """Also for a stream that the program's caller closed, which is None."""
    return stream is not None and stream.isatty()


def prepare_output() -> None:
    """UTF-8 for files and pipes whatever the locale; a terminal gets its own encoding."""
    if isinstance(sys.stdout, TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:
            sys.stdout.reconfigure(encoding="utf-8")


def answer(
    model: TextModel, request: Request, *, stream: bool, prompt_piece: int | None = None
) -> Completion:
    """Run one request, where signals are noted: one ends it early with finish_reason "cancelled".

    With `stream` the text goes to standard output as it is generated, and a newline after it; on a terminal a
    summary follows on stderr. prompt_piece: as for `TextModel.complete`
    """
    completion = None
    tokens, context = len(request.prompt.ids), model.generator.context
    drawn = is_terminal(sys.stderr) and not common.unstyled()
    progress: PrefillBar | PrefillLines = PrefillBar() if drawn else PrefillLines(tokens)
    with closing(progress):
        policy = request.prefill or model.generator.default_policy
        log.info("prompt of %d tokens, context %d, %s", tokens, context, policy)
        watch = Watch(progress=progress.show, cancelled=Stop.of_command().came)
        for event in model.complete(request, watch, prompt_piece):
            if isinstance(event, Prefilled):
                progress.close()
            elif isinstance(event, Completion):
                completion = event
            elif isinstance(event, TextDelta) and stream:
                write(event.text)
    assert completion is not None, "every request ends with a Completion"
    log.info("prefill: %s", work(model.generator.timer))
    if stream:
        # Without output there is no line to end, but an empty answer is a line too.
        if completion.finish_reason != "cancelled" or completion.text:
            write("\n")
        if is_terminal(sys.stderr):
            note = little_to_save(model.generator.model, completion.prefill, tokens)
            for line in filter(None, (summary(completion), note)):  # rich would wrap it at the edge
                click.echo(line if common.unstyled() else click.style(line, dim=True), err=True)
    return completion


def write(text: str) -> None:
    """Text to standard output at once. On a terminal without control characters, which could send it
    commands.
    """
    streams.write(text.translate(_CONTROL) if is_terminal(sys.stdout) else text)


class PrefillBar:
    """A progress bar on stderr, if the prefill is long enough."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._bar: Progress | None = None
        self._on = True

    def show(self, done: int, total: int) -> None:
        """For `Watch.progress`."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
        elif self._on and time.perf_counter() - self._begin > _PATIENCE:
            columns = (TextColumn("prompt"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=common.make_console(stderr=True), transient=True)
            self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def close(self) -> None:
        """Remove the bar for good."""
        self._on = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class PrefillLines:
    """Lines on a stderr that is no terminal, if the prefill is long enough."""

    def __init__(self, tokens: int) -> None:
        self._state = f"prompt: 0 of {tokens:,} tokens"
        self._lines = ExitStack()
        self._lines.enter_context(told_in_log(lambda: self._state))

    def show(self, done: int, total: int) -> None:
        """For `Watch.progress`."""
        self._state = f"prompt: {done:,} of {total:,} tokens"

    def close(self) -> None:
        self._lines.close()


@contextmanager
def naming_the_flag(request: Request, trained: int) -> Iterator[None]:
    """Inside, a ContextOverflowError names the flag that helps, with room for the answer of `request`.

    trained: the model's own limit of tokens, beyond which no flag helps.
    """
    try:
        yield
    except ContextOverflowError as error:
        tokens, fit = error.n_prompt_tokens, error.n_ctx
        needed = tokens + (request.max_tokens or 1)
        has = f"at least {tokens:,}" if error.at_least else f"{tokens:,}"
        if max(needed, fit + 1) > trained:
            remedy = f"shorten the prompt: the model was trained for {trained:,} tokens, the answer included"
        elif error.at_least:
            remedy = f"add a --ctx-size above {tokens}, at most {trained}, or shorten the prompt"
        else:
            remedy = f"add --ctx-size {needed} (it includes room for the answer), or shorten the prompt"
        message = f"the prompt has {has} tokens and the context holds {fit:,}: {remedy}"
        raise ContextOverflowError(tokens, fit, message) from error
