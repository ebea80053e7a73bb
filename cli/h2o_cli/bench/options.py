"""The flags that all of h2o-bench's measurements share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from h2o_cli.bench.model import default_work_dir
from h2o_cli.common import NotNegative, json_option, threads_option, verbose_option
from h2o_cli.help import Command, Group, grouped
from h2o_cli.model_options import execution_options
from h2o_cli.prefill_options import prefill_options
from h2o_runtime.policies.prefill import PREFILL


class Lengths(click.ParamType[tuple[int, ...]]):
    """Numbers of tokens, separated by commas: 1024,2048,4096."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
            self.fail(f"{value!r} is no list of lengths such as 1024,4096", param, ctx)
        lengths = tuple(sorted({int(word) for word in words}))
        if lengths[0] < 1 or lengths[-1] >= 2**31:
            self.fail("lengths must be from 1 to 2,147,483,647 tokens", param, ctx)
        return lengths


class Peers(click.ParamType[tuple[str, ...]]):
    """Names of peers, or all, or none."""

    name = "NAMES"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        if value in ("all", "none"):
            return self._known if value == "all" else ()
        names = tuple(name.strip() for name in str(value).split(","))
        unknown = [name for name in names if name not in self._known]
        if unknown:
            self.fail(
                f"{unknown[0]!r} is no peer: choose from {', '.join(self._known)}, all, none", param, ctx
            )
        return names


beside_option = click.option(
    "--beside",
    type=click.Choice(PREFILL.names),
    multiple=True,
    help="Also this policy of ours; repeatable. full always takes part.",
)

losses_option = click.option(
    "--losses",
    is_flag=True,
    help="Also what sparse attention does to the perplexity of the --text, beside the time that it takes.",
)


FIRST = (
    "lengths",
    "repetitions",
    "peers",
    "text",
    "checkpoint",
    "quality",
    "threads",
    "csv_file",
    "png_file",
    "as_json",
)


def bench_options(peers: tuple[str, ...], lengths: str) -> Callable[[Command], Command]:
    """Add the flags; their values arrive as keyword arguments."""
    options = (
        click.argument("model", metavar="BUNDLE_OR_SHAPE"),
        click.option("--lengths", type=Lengths(), default=lengths, show_default=True, help="Tokens."),
        click.option("--repetitions", type=click.IntRange(min=1), default=7, show_default=True),
        click.option(
            "--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Runs before."
        ),
        click.option(
            "--peers", type=Peers(peers), default="all", help=f"all, none, or some of: {', '.join(peers)}."
        ),
        click.option(
            "--time-limit",
            type=NotNegative(),
            default=600.0,
            show_default=True,
            help="Leave out who would need more seconds for one run.",
        ),
        click.option(
            "--text",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Prompts are this file's beginnings, in place of random tokens: where a policy's work depends on "
            "what it reads.",
        ),
        click.option(
            "--dtype",
            type=click.Choice(["float32", "float16"]),
            default="float32",
            show_default=True,
            help="Precision of a built-in shape; a bundle has its own.",
        ),
        click.option(
            "--checkpoint",
            type=click.Path(path_type=Path, file_okay=False),
            help="The bundle's checkpoint, where it is no longer where it was exported from.",
        ),
        click.option(
            "--openvino-model",
            type=click.Path(path_type=Path, file_okay=False),
            help="OpenVINO's folder of the same model, in any precision, in place of one made of the checkpoint.",
        ),
        click.option(
            "--work-dir",
            type=click.Path(path_type=Path, file_okay=False),
            default=default_work_dir,
            help="Where checkpoints, bundles and peers' files are made and kept.",
        ),
        execution_options,
        prefill_options,
        threads_option,
        json_option,
        click.option(
            "--csv",
            "csv_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Write rows here, as they are made.",
        ),
        click.option(
            "--resume", is_flag=True, help="Keep the lengths that are done in the file of --csv, and go on."
        ),
        click.option("--png", "png_file", type=click.Path(path_type=Path, dir_okay=False), help="Draw here."),
        verbose_option,
    )

    return grouped(Group.MEASUREMENT, *options)
