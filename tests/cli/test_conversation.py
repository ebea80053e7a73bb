"""The commands of a conversation: what begins with a slash and is none is told, and never goes to the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from h2o_cli.run import conversation
from h2o_cli.run.conversation import Conversation, converse
from h2o_cli.stopping import Stop


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the model."""
    texts: list[str] = []
    monkeypatch.setattr(Conversation, "say", lambda self, text: texts.append(text) or True)
    return texts


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A conversation on a terminal, up to the end of these lines."""
    left = [*lines, None]
    monkeypatch.setattr(conversation, "is_terminal", lambda stream: True)
    monkeypatch.setattr(conversation, "_typed", lambda stop: left.pop(0))
    model: Any = SimpleNamespace(chat_prompt=lambda messages: None)
    with click.Context(click.Command("h2o-run"), obj=Stop()):
        converse(model, None, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["/exit", "/bye", "/quit", " /bye "])
def test_a_word_that_ends(word: str, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "One?", word, "Two?")
    assert sent == ["One?"]


@pytest.mark.parametrize("word", ["/foo", "/?", "/clear"])
def test_a_word_that_is_no_command(
    word: str, sent: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, word, "/help", "Two?")
    told = capsys.readouterr().err
    assert f"error: there is no command {word}: /exit or Ctrl-D ends" in told
    assert told.count("/exit or Ctrl-D ends") == 3  # at the beginning, of the error, and of /help
    assert sent == ["Two?"]


@pytest.mark.parametrize("text", ["/etc/passwd", "/tmp is full", " /foo", "/no_think"])
def test_other_texts_with_a_slash_are_messages(
    text: str, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, text)
    assert sent == [text]
