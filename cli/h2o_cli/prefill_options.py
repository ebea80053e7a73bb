"""The prefill flags, the same for every command, and the `PrefillConfig` they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from h2o_runtime import PrefillConfig

Command = TypeVar("Command", bound=Callable[..., Any])

_FLAGS: tuple[tuple[tuple[str, ...], str, Any, str], ...] = (
    (
        ("--prefill",),
        "policy",
        click.Choice(["h2o", "full"]),
        "Chunked sparse prefill, or attention to everything.",
    ),
    (("-b", "--batch-size"), "batch_size", int, "Logical batch B: most tokens in one dense call."),
    (("-ub", "--chunk-size"), "chunk_size", int, "Chunk S: unit of the block-sparse pattern."),
    (("--h2o-local",), "local", int, "Local window L: the end of a chunk that is always remembered."),
    (("--h2o-heavy",), "heavy", int, "Heavy hitters H: earlier tokens remembered by score."),
    (("--score",), "score", click.Choice(["colsum", "window"]), "How heavy hitters are found."),
    (("--score-window",), "score_window", int, "Queries that vote under --score window."),
    (("--score-heads",), "score_heads", click.Choice(["kv", "query"]), "One memory set for each such head."),
    (("--sink",), "sink", int, "First tokens of the prompt that are always remembered."),
    (("--dense-tail",), "dense_tail", int, "Last tokens of the prompt that attend to everything."),
)


def prefill_options(command: Command) -> Command:
    """Add the prefill flags. They arrive as the keyword arguments named in `PrefillConfig`, None when not given."""
    for flags, name, kind, text in reversed(_FLAGS):
        command = click.option(*flags, name, type=kind, default=None, help=text)(command)
    return command


def prefill_config(defaults: PrefillConfig, given: dict[str, Any]) -> PrefillConfig:
    """`defaults` (a bundle's, or the built-in ones) overridden by the flags that were given.

    Takes its own arguments out of `given`. Raises ConfigError where the result contradicts itself.
    """
    values = {name: given.pop(name) for _, name, _, _ in _FLAGS}
    return PrefillConfig(
        **(asdict(defaults) | {name: value for name, value in values.items() if value is not None})
    )
