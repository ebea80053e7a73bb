"""The flags of both evaluation commands, and their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import click

from h2o_cli.common import argument_text, json_option, verbose_option
from h2o_cli.effects import Beside, NotBeside, needing
from h2o_cli.eval.contestants import Contestant, contestants
from h2o_cli.eval.plan import METRICS, Extent
from h2o_cli.eval.policies import BASELINES
from h2o_cli.eval.suite import SIZES, Half, SuiteName
from h2o_cli.eval.tasks import TASKS, Question
from h2o_cli.help import Command, Group, grouped
from h2o_cli.model_options import load_arguments, model_options, on_device
from h2o_cli.policy_options import PolicyText, prefill_options, prefill_policy
from h2o_cli.settings_text import SettingsText, numbers_in
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.components.options import check_options, option
from h2o_runtime.errors import ConfigError
from h2o_runtime.loaded_model import DEFAULT_CONTEXT
from h2o_runtime.policies.prefill import PREFILL, policy_on_device


class Names(click.ParamType[tuple[str, ...]]):
    """Some of the known names, separated by commas, or all, or none."""

    name = "NAMES"

    def __init__(self, what: str, known: Callable[[], tuple[str, ...]]) -> None:
        self._what, self._known = what, known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        known = self._known()
        if value in ("all", "none"):
            return known if value == "all" else ()
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            self.fail(
                f"{unknown[0]!r} is no {self._what}: choose from {', '.join(known)}, all, none", param, ctx
            )
        return names


@dataclass(frozen=True)
class NeedleSettings:
    """Prompts whose answers are known."""

    title: ClassVar[str] = "needle and task prompts"

    lengths: str = option("", "lengths of prompts in tokens, such as 4096,8192; default: --length")
    seeds: Literal["auto"] | int = option(
        "auto", "number of prompts of each kind; auto: 3, and 1 with --quick", least=1
    )
    depths: str = option("0,0.25,0.5,0.75,1", "of needles: 0 is the start of the prompt, 1 its end")
    question: Question = option("end", "place of a needle's question")

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.each_length, self.each_depth  # checks them

    @property
    def each_length(self) -> tuple[int, ...]:
        return numbers_in(self.lengths, "lengths") if self.lengths else ()

    @property
    def each_depth(self) -> tuple[float, ...]:
        """Raises ConfigError."""
        try:
            depths = tuple(sorted({float(word) for word in self.depths.split(",")}))
        except ValueError:
            raise ConfigError(
                f"depths must be like 0,0.5,1, but is {self.depths!r}", field="depths"
            ) from None
        if not all(0.0 <= depth <= 1.0 for depth in depths):
            raise ConfigError(f"depths must be from 0 to 1, but is {self.depths}", field="depths")
        return depths


@dataclass(frozen=True)
class SuiteSettings:
    """Which fixed texts are read."""

    title: ClassVar[str] = "fixed texts"

    suite: SuiteName = option(
        "standard",
        ", ".join(f"{name} {suite.texts} of {suite.length:,} tokens" for name, suite in SIZES.items()),
    )
    half: Half = option("report", "texts for reports, or texts for tuning settings")
    texts: Literal["auto"] | int = option(
        "auto", "number of texts: more give a smaller standard error; auto: the suite's", least=1
    )

    def __post_init__(self) -> None:
        check_options(self)


FIRST = (
    "texts",
    "suite",
    "length",
    "metrics",
    "beside",
    "baselines",
    "needles",
    "prefill",
    "context",
    "threads",
    "as_json",
)
_TEXTS = (
    click.option(
        "--text",
        "texts",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="A document to read; repeatable.  [default: pieces of Python's manual]",
    ),
    needing(
        NotBeside("texts"),  # a suite names its texts
        click.option(
            "--suite",
            type=SettingsText(SuiteSettings, first="suite"),
            help='Fixed texts: small, standard or long, such as "small half=tune texts=5"; help prints more.',
        ),
    ),
    click.option(
        "-n",
        "--length",
        type=click.IntRange(min=16),
        help="Tokens read of each text; it needs --decode-tokens more.  [default: 4096, or what fits in "
        "--ctx-size]",
    ),
)
_RULES = (
    click.option(
        "--beside",
        type=PolicyText(PREFILL, "--beside"),
        multiple=True,
        help='Also measure this policy, or the configured one with these settings: "heavy=192"; repeatable.',
    ),
    click.option(
        "--baselines",
        type=Names("baseline", lambda: BASELINES.names),
        default="all",
        help="Baselines with the same number of keys: all, none, or some of their names.",
    ),
)


def of_metrics(*names: str) -> Beside:
    """The condition of an option that only these metrics use."""
    return Beside("metrics", names)


_OF_METRICS = (
    needing(
        of_metrics("perplexity", "causal"),
        click.option(
            "--from",
            "first",
            type=click.IntRange(min=1),
            help="First position that counts for perplexity.  [default: a quarter of --length]",
        ),
    ),
    needing(
        of_metrics("decode"),
        click.option(
            "--decode-tokens",
            "decoded",
            type=click.IntRange(min=1),
            help="Tokens decoded after a text; each attends to every earlier token.  [default: 256]",
        ),
    ),
    needing(
        of_metrics("needle", "tasks"),
        needing(
            of_metrics("needle"),  # tasks have no depths and no place of a question
            click.option(
                "--needles",
                type=SettingsText(NeedleSettings),
                default=NeedleSettings(),
                help='Needle and task prompts: "lengths=4096,8192 seeds=3"; help prints more.',
            ),
            of=("depths", "question"),
        ),
    ),
    needing(
        of_metrics("tasks"),
        click.option(
            "--tasks",
            type=Names("task", lambda: tuple(TASKS)),
            help=f"Tasks like RULER's: all, none, or some of {', '.join(TASKS)}.  [default: all]",
        ),
    ),
)
_NAMES_OF_METRICS = ("first", "decoded", "tasks")


def eval_options(metrics: tuple[str, ...]) -> Callable[[Command], Command]:
    """Add the flags; their values arrive as keyword arguments. metrics: those of a command by default."""
    chosen = click.option(
        "--metrics",
        type=Names("metric", lambda: METRICS),
        default=metrics,
        help=f"Some of: {', '.join(METRICS)}.  [default: {','.join(metrics)}]",
    )
    bundle = click.argument("bundle", type=click.Path(path_type=Path))
    shared = (bundle, *_TEXTS, chosen, *_OF_METRICS, *_RULES)
    return grouped(Group.MEASUREMENT, *shared, prefill_options, model_options, json_option, verbose_option)


def make_contestants(
    manifest: Manifest, flags: dict[str, Any], extent: Extent, ablate: bool
) -> tuple[tuple[Contestant, ...], dict[str, Any]]:
    """And arguments of `Generator.load`. Takes its own arguments, and those, out of `flags`. Raises ConfigError."""
    beside = [argument_text(text, "--beside") for text in flags.pop("beside")]
    configured = prefill_policy(manifest.prefill, flags)
    arguments = on_device(load_arguments(flags), manifest, configured)
    configured = policy_on_device(configured, arguments["device"])
    return contestants(configured, beside, flags.pop("baselines"), extent.length, ablate), arguments


def make_extent(manifest: Manifest, flags: dict[str, Any], defaults: dict[str, Any]) -> Extent:
    """Takes its own arguments out of `flags`; others are the suite's or `defaults`. Raises ConfigError."""
    defaults = {"tasks": tuple(TASKS)} | defaults
    needles: NeedleSettings = flags.pop("needles")
    given = {name: flags.pop(name) for name in ("length", "metrics", *_NAMES_OF_METRICS)}
    if flags["suite"] is not None:
        size = SIZES[flags["suite"].suite]
        given = {name: value for name, value in given.items() if value is not None}
        given = {"length": size.length, "decoded": size.decoded, "first": None} | given
    chosen = defaults | {name: value for name, value in given.items() if value is not None}
    metrics = chosen["metrics"]
    room = flags["context"] or min(manifest.model.max_position_embeddings, DEFAULT_CONTEXT)
    after = chosen["decoded"] if "decode" in metrics else 0
    if after >= room:
        raise ConfigError(
            f"{after:,} decoded tokens leave no room for a text in a context of {room:,}: lower --decode-tokens",
            field="decoded",
        )
    length = given["length"] or min(defaults["length"], room - after)
    first = chosen.get("first") or max(length // 4, 1)
    if length < 16 or first >= length:
        raise ConfigError(
            f"first position {first:,} is not within a text of {length:,} tokens: lower --from or raise --length",
            field="first",
        )
    asks = {"needle", "tasks"} & set(metrics)
    extent = Extent(
        length,
        first,
        chosen["decoded"],
        metrics,
        (needles.each_length or (min(length, room - 64),)) if asks else (),
        needles.each_depth,
        defaults["seeds"] if needles.seeds == "auto" else needles.seeds,
        needles.question,
        chosen["tasks"],
    )
    if flags["context"] is None:
        flags["context"] = max(extent.context, 1)
    elif flags["context"] < extent.context:
        raise ConfigError(
            f"context is {flags['context']:,}, and {extent.context:,} tokens are needed: raise --ctx-size",
            field="context",
        )
    return extent
