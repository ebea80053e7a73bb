"""An option that takes several settings as one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import click
import pytest
from click.testing import CliRunner, Result

from h2o_cli.settings_text import SettingsText
from h2o_runtime.components.options import Configuration, option


@dataclass(frozen=True)
class Oven(Configuration):
    title: ClassVar[str] = "how to bake"

    heat: int = option(200, "degrees", least=0)
    fan: bool = option(False, "whether air moves", needs="heat")
    shelf: Literal["top", "middle"] = option("middle", "where it stands")
    note: str = option("", "what to write on it")


def bake(*words: str, first: str | None = None) -> tuple[Result, list[Any]]:
    found: list[Any] = []

    @click.command()
    @click.option("--oven", type=SettingsText(Oven, first), default=Oven())
    def command(oven: Any) -> None:
        found.append(oven)

    return CliRunner().invoke(command, list(words)), found


@pytest.mark.parametrize(
    ("words", "first", "oven"),
    [
        ((), None, Oven()),
        (("--oven", "heat=180 shelf=top"), None, Oven(180, shelf="top")),
        (("--oven", "fan=on note='for Ann, 8 years'"), None, Oven(fan=True, note="for Ann, 8 years")),
        (("--oven", "180"), "heat", Oven(180)),
        (("--oven", "180 fan=true"), "heat", Oven(180, fan=True)),
        (("--oven", "fan=true"), "heat", Oven(fan=True)),
    ],
)
def test_settings_that_are_left_out_have_their_defaults(
    words: tuple[str, ...], first: str | None, oven: Oven
) -> None:
    done, found = bake(*words, first=first)
    assert done.exit_code == 0, done.output
    assert found == [oven]


@pytest.mark.parametrize(
    ("text", "first", "told"),
    [
        ("heet=180", None, "there is no setting heet: did you mean heat?"),
        ("colour=red", None, "there is no setting colour: there are heat, fan, shelf, note"),
        ("heat=-1", None, "heat must be at least 0, but is -1"),
        ("heat=1 heat=2", None, "heat is given twice"),
        ("180 heat=2", "heat", "heat is given twice"),
        ("heat=0 fan=on", None, "fan needs heat, which is 0: leave it out"),
        ("180", None, "'180' is no setting: write heat=…"),
        ("180 hot", "heat", "'hot' is no setting: write HEAT fan=…"),
        ("heat=", None, "'heat=' is no setting"),
        ("", None, "--oven is empty: write heat=…"),
        ("note='open", None, "cannot be read: No closing quotation"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, first: str | None, told: str) -> None:
    done, found = bake("--oven", text, first=first)
    assert done.exit_code == 2
    assert not found
    message = " ".join(done.output.split())
    assert "Invalid value for '--oven': " in message
    assert told in message


def test_help_prints_every_setting_with_its_default() -> None:
    done, found = bake("--oven", "help", first="heat")
    assert done.exit_code == 0
    assert not found
    assert done.output.splitlines()[0] == '--oven "HEAT fan=… shelf=… note=…"   how to bake'
    for line in ("heat=200", "degrees", "fan=false", "shelf=top|middle", "what to write on it"):
        assert line in done.output
