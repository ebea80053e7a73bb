"""The sampling flags and the `Sampling` made from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from h2o_cli.effects import Beside, NotBeside, needing
from h2o_cli.help import Command, Group, grouped
from h2o_runtime import Sampling

_FLAGS: tuple[tuple[str, Any, str], ...] = (
    (
        "temperature",
        float,
        "0 always takes the most probable token; 1 samples from the model's own distribution.",
    ),
    ("top_k", int, "Keep the k most probable tokens; 0 keeps all."),
    ("top_p", float, "Keep the most probable tokens up to this total probability; 1 keeps all."),
    ("min_p", float, "Drop tokens below this fraction of the highest probability; 0 keeps all."),
    ("repetition_penalty", float, "Make recent tokens less probable; 1 has no effect."),
    ("presence_penalty", float, "Subtract this from the logit of recent tokens."),
    ("frequency_penalty", float, "Subtract this once for each time a recent token occurred."),
)


def sampling_options(command: Command) -> Command:
    """Add the sampling flags. Their values arrive as the keyword arguments named in `Sampling`."""
    logprobs = click.option(
        "--logprobs",
        type=click.IntRange(min=0),
        metavar="N",
        help="With --json: log-probabilities of each token and of the N most probable ones.",
    )
    seed = click.option(
        "--seed", type=int, help="The same seed gives the same answer.  [default: a random one]"
    )
    flags = {name: _option(name, kind, text) for name, kind, text in _FLAGS}
    drawn = NotBeside("temperature", (0,))  # 0 draws nothing
    for name in ("top_k", "top_p", "min_p"):
        flags[name] = needing(drawn, flags[name])
    with_json = needing(Beside("as_json"), logprobs)
    return grouped(Group.ANSWER, *flags.values(), needing(drawn, seed), with_json)(command)


def _option(name: str, kind: Any, text: str) -> Callable[[Command], Command]:
    flag, default = "--" + name.replace("_", "-"), getattr(Sampling(), name)
    return click.option(flag, name, type=kind, default=default, show_default=True, help=text)


def sampling_config(given: dict[str, Any]) -> Sampling:
    """Takes its own arguments out of `given`. Raises ConfigError for values out of range."""
    names = [name for name, _, _ in _FLAGS]
    return Sampling(**{name: given.pop(name) for name in (*names, "seed", "logprobs")})
