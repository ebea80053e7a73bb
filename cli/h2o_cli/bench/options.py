"""The flags that all of h2o-bench's measurements share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from h2o_cli.bench.contestants import OPENVINO
from h2o_cli.bench.shapes import SHAPES
from h2o_cli.common import NotNegative, json_option, threads_option, verbose_option
from h2o_cli.effects import Beside, Either, NotBeside, needing
from h2o_cli.help import Command, Group, grouped
from h2o_cli.model_options import execution_options
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import PolicyText, prefill_options
from h2o_cli.settings_text import Names, counts_in
from h2o_runtime.components.options import MOST
from h2o_runtime.policies.prefill import PREFILL


class Lengths(click.ParamType[tuple[int, ...]]):
    """Numbers of tokens, separated by commas: 1024,2048,4096."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        lengths = counts_in(str(value))
        if not lengths:
            self.fail(
                f"{value!r} is no list of lengths from 1 to {MOST:,} tokens, such as 1024,4096", param, ctx
            )
        return lengths


beside_option = click.option(
    "--beside",
    type=PolicyText(PREFILL, "--beside"),
    multiple=True,
    help="Also measure this policy, written as for --prefill; repeatable. full is always measured.",
)

OF_SHAPE = Beside("model", tuple(SHAPES))


def model_files(command: Command) -> Command:
    """The flags for what peers read, of measurements whose peers run a whole model."""
    options = (
        needing(
            Beside("peers"),
            needing(
                NotBeside("model", tuple(SHAPES)),
                click.option(
                    "--checkpoint",
                    type=click.Path(path_type=Path),
                    help="Folder of the bundle's checkpoint, if it has moved since the export.",
                ),
            ),
        ),
        needing(
            Beside("peers", (OPENVINO,)),
            click.option(
                "--openvino-model",
                type=click.Path(path_type=Path, file_okay=False),
                help="OpenVINO folder of the same model, in any precision, instead of converting the checkpoint.",
            ),
        ),
    )
    return grouped(Group.MEASUREMENT, *options)(command)


FIRST = (
    "lengths",
    "repetitions",
    "peers",
    "text",
    "prefill",
    "threads",
    "csv_file",
    "as_json",
)


# How to measure, in each of the measurements.
_MEASURING = (
    click.option(
        "--repetitions",
        type=click.IntRange(min=1),
        default=7,
        show_default=True,
        help="Measured rounds of each length.",
    ),
    click.option(
        "--time-limit",
        type=NotNegative(),
        default=600.0,
        show_default=True,
        help="Leave out contestants that need more than so many seconds for one run.",
    ),
    click.option(
        "--text",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Take prompts from the start of this file instead of random tokens, because the time of some "
        "policies depends on the text.",
    ),
    needing(
        OF_SHAPE,
        click.option(
            "--dtype",
            type=click.Choice(["float32", "float16"]),
            default="float32",
            show_default=True,
            help="Precision of a built-in shape; not for bundles, which have their own.",
        ),
    ),
    needing(
        Either(Beside("peers"), OF_SHAPE),
        click.option(
            "--work-dir",
            type=OutputPath(file_okay=False),
            help="Folder for generated checkpoints, bundles and peers' files.  [default: h2o-bench in the "
            "user's cache]",
        ),
    ),
)


def bench_options(peers: tuple[str, ...], lengths: str) -> Callable[[Command], Command]:
    """Add the flags; their values arrive as keyword arguments."""
    options = (
        click.argument("model", metavar="BUNDLE_OR_SHAPE"),
        click.option(
            "--lengths",
            type=Lengths(),
            default=lengths,
            show_default=True,
            help="Lengths to measure, in tokens.",
        ),
        click.option(
            "--peers",
            type=Names("peer", lambda: peers),
            default="all",
            help=f"Other systems to measure: all, none, or some of {', '.join(peers)}.",
        ),
        *_MEASURING,
        execution_options,
        prefill_options,
        threads_option,
        json_option,
        click.option(
            "--csv",
            "csv_file",
            type=OutputPath(dir_okay=False),
            help="Write rows to this file as they are measured.",
        ),
        verbose_option,
    )

    return grouped(Group.MEASUREMENT, *options)
