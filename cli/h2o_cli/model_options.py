"""Flags of every command that loads a bundle: what executes it, where, and for how many tokens."""

from __future__ import annotations

import click

from h2o_cli.common import Command, threads_option
from h2o_runtime.names import BACKENDS, DEVICES, PROVIDERS

_EXECUTION = (
    click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default=BACKENDS[0],
        show_default=True,
        help="Who executes the dense graphs; the TensorRTs take engines of h2o-build.",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="auto takes an NVIDIA GPU where the backend can use it.",
    ),
    click.option(
        "--attention",
        type=click.Choice(PROVIDERS),
        default="auto",
        show_default=True,
        help="Who executes attention: native kernels, or the ONNX function bodies.",
    ),
)
_CONTEXT = click.option(
    "-c",
    "--ctx-size",
    "context",
    type=click.IntRange(min=1, max=2**31 - 1),  # the runtime keeps positions as int32
    help="Most tokens of prompt and answer.  [default: what the model was trained for, at most 8192]",
)


def execution_options(command: Command) -> Command:
    """`backend`, `device` and `attention`."""
    for option in reversed(_EXECUTION):
        command = option(command)
    return command


def model_options(command: Command) -> Command:
    """Arguments of `Generator.load` by their names: those of `execution_options`, `context` and `threads`."""
    return _CONTEXT(threads_option(execution_options(command)))
