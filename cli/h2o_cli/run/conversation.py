"""A conversation in the terminal: h2o-run --chat."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import replace

import click

from h2o_cli.common import unstyled
from h2o_cli.run.screen import answer, is_terminal, naming_the_flag
from h2o_cli.stopping import Stop
from h2o_runtime.answers.request import Request
from h2o_runtime.errors import Cancelled, ContextOverflowError, InputError
from h2o_runtime.text import decode_utf8
from h2o_runtime.text_model import TextModel

Message = dict[str, str]

HELP = "/exit or Ctrl-D ends, /reset begins anew, Ctrl-C stops an answer."
_ENDS = ("/exit", "/bye", "/quit")
_COMMAND = re.compile(r"/[a-z?]+")


def opening(system: str | None) -> list[Message]:
    """The messages before the user's first one."""
    return [] if system is None else [{"role": "system", "content": system}]


class Conversation:
    """All messages so far; each turn is answered with all of them. The model's cache keeps what it has read.

    settings: a request whose prompt is replaced in each turn. prompt_piece: as for `TextModel.complete`
    """

    def __init__(
        self, model: TextModel, settings: Request, system: str | None, prompt_piece: int | None
    ) -> None:
        self._model = model
        self._settings = settings
        self._system = system
        self._prompt_piece = prompt_piece
        self.reset()

    def reset(self) -> None:
        """Drop all messages but the system prompt."""
        self.messages = opening(self._system)

    @property
    def begun(self) -> bool:
        """Whether `reset` would drop anything."""
        return self.messages != opening(self._system)

    def say(self, text: str) -> bool:
        """One turn: the user's message, then the answer on the screen. False if a signal stopped it.

        A stopped answer stays in the conversation as far as it came; a turn without any answer is removed. If
        `TextModel` raises, the conversation is as before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        with naming_the_flag(self._settings, self._model.generator.model.max_position_embeddings):
            prompt = self._model.chat_prompt(messages)
            request = replace(self._settings, prompt=prompt)
            completion = answer(self._model, request, stream=True, prompt_piece=self._prompt_piece)
        complete = completion.finish_reason != "cancelled"
        if completion.tokens or complete:
            self.messages = [*messages, {"role": "assistant", "content": completion.text}]
        return complete


def converse(
    model: TextModel,
    settings: Request,
    system: str | None,
    first: str | None,
    prompt_piece: int | None,
) -> None:
    """Talk until the input ends. On a terminal a failed turn is reported and removed, otherwise it is an
    error.

    On a terminal Ctrl-C ends the answer. Otherwise, and by any other signal, the command ends: raises Cancelled.
    """
    terminal, stop = is_terminal(sys.stdin), Stop.of_command()
    conversation = Conversation(model, settings, system, prompt_piece)
    model.chat_prompt(
        [*conversation.messages, {"role": "user", "content": "Hello."}]
    )  # raises without a template
    if terminal:
        # Editing and history of the input line, if Python was built with it.
        with contextlib.suppress(ImportError):
            import readline

            if unstyled():
                readline.parse_and_bind("set enable-bracketed-paste off")
        click.echo(HELP, err=True)
    text = first
    while True:
        try:
            if text is None:
                text = _typed(stop) if terminal else _piped(stop)
                stop.check()  # a terminal that was closed may give the end of its input first
            if text is None or text.strip() in _ENDS:
                return
            if text.strip() == "/reset":
                conversation.reset()
            elif text.strip() == "/help":
                click.echo(HELP, err=True)
            elif _COMMAND.fullmatch(text.rstrip()):
                raise InputError(f"there is no command {text.rstrip()}: {HELP} A blank before it sends it.")
            elif text.strip() and not conversation.say(text):
                if not (terminal and stop.forget_ctrl_c()):
                    raise Cancelled("stopped by a signal")
                click.echo("stopped", err=True)
        except ContextOverflowError as error:
            hint = "; /reset begins anew" if terminal and conversation.begun else ""
            _told(ContextOverflowError(error.n_prompt_tokens, error.n_ctx, f"{error}{hint}"), terminal)
        except InputError as error:
            _told(error, terminal)
        text = None


def _told(error: ContextOverflowError | InputError, terminal: bool) -> None:
    if not terminal:
        raise error
    click.echo(f"error: {error}", err=True)


def _typed(stop: Stop) -> str | None:
    """A line from the terminal; None at its end. Ctrl-C only drops the line."""
    while True:
        try:
            return decode_utf8(os.fsencode(stop.waited(lambda: input("> "))), "the line")
        except EOFError:
            click.echo()
            return None
        except UnicodeDecodeError as error:
            raise InputError(f"the line is not valid {error.encoding}: type it again") from error
        except Cancelled:
            if not stop.forget_ctrl_c():
                raise
            click.echo(f"\n{HELP}", err=True)


def _piped(stop: Stop) -> str | None:
    """A line from a file or a pipe; None at its end."""
    line = stop.waited(sys.stdin.buffer.readline) if sys.stdin else b""
    return decode_utf8(line, "standard input").rstrip("\r\n") if line else None
