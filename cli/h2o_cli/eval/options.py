"""The flags of h2o-eval, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import click

from h2o_cli.bundle_argument import bundle_argument
from h2o_cli.common import NotNegative, argument_text, json_option, verbose_option
from h2o_cli.effects import Beside, NotBeside, needing
from h2o_cli.eval.contestants import Contestant, contestants
from h2o_cli.eval.measuring import METRICS, Extent
from h2o_cli.eval.policies import BASELINES
from h2o_cli.eval.suite import SIZES, Half, SuiteName
from h2o_cli.eval.texts import Document, from_files, from_manual, from_suite
from h2o_cli.help import Group, grouped
from h2o_cli.model_options import load_arguments, model_options, on_device
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import PolicyText, chosen_prefill, prefill_options
from h2o_cli.settings_text import Names, SettingsText, numbers_in
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.components.options import Configuration, option
from h2o_runtime.errors import ConfigError
from h2o_runtime.loaded_model import DEFAULT_CONTEXT
from h2o_runtime.policies.prefill import PREFILL, Query, policy_on_device
from h2o_runtime.text import Tokenizer

DEFAULT_METRICS = ("decode", "perplexity", "recall")
LENGTH = 4096  # tokens of a text by default


@dataclass(frozen=True)
class NeedleSettings(Configuration):
    """Prompts whose answers are known."""

    title: ClassVar[str] = "needle prompts"

    lengths: str = option("", "lengths of prompts in tokens, such as 4096,8192; default: --length")
    seeds: int = option(3, "number of documents", least=1)
    depths: str = option("0,0.25,0.5,0.75,1", "of needles: 0 is the start of the prompt, 1 its end")

    def __post_init__(self) -> None:
        super().__post_init__()
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
class SuiteSettings(Configuration):
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


def of_metrics(*names: str) -> Beside:
    """The condition of an option that only these metrics use."""
    return Beside("metrics", names)


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
        help="Baselines with as many keys: all, none, or some names.  [default: all, none with --text]",
    ),
)


_OF_METRICS = (
    needing(
        of_metrics("perplexity"),
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
            default=256,
            show_default=True,
            help="Tokens decoded after a text; each attends to every earlier token.",
        ),
    ),
    needing(
        of_metrics("needle"),
        click.option(
            "--needles",
            type=SettingsText(NeedleSettings),
            default=NeedleSettings(),
            help='Needle prompts: "lengths=4096,8192 seeds=3"; help prints more.',
        ),
    ),
    needing(
        of_metrics("decode", "perplexity"),
        click.option(
            "--tolerance",
            type=NotNegative(),
            metavar="PERCENT",
            help="Exit with code 3 if the rule's perplexity is more than so many percent above full attention's.",
        ),
    ),
    needing(
        of_metrics("perplexity", "recall"),
        click.option(
            "--ablate", is_flag=True, help="Also measure the rule with each setting changed, one at a time."
        ),
    ),
    needing(
        of_metrics("perplexity", "recall", "needle"),
        click.option(
            "--pictures",
            type=OutputPath(file_okay=False),
            help="Folder for pictures: increases by rule, position and setting, recall by layer, needles.",
        ),
    ),
)
eval_options = grouped(
    Group.MEASUREMENT,
    bundle_argument,
    *_TEXTS,
    click.option(
        "--metrics",
        type=Names("metric", lambda: METRICS),
        default=DEFAULT_METRICS,
        help=f"Some of: {', '.join(METRICS)}.  [default: {','.join(DEFAULT_METRICS)}]",
    ),
    *_OF_METRICS,
    *_RULES,
    prefill_options,
    model_options,
    json_option,
    verbose_option,
)


def make_contestants(
    manifest: Manifest, flags: dict[str, Any], length: int
) -> tuple[tuple[Contestant, ...], dict[str, Any]]:
    """And arguments of `Generator.load`. Takes its own arguments, and those, out of `flags`. Raises ConfigError."""
    beside = [argument_text(text, "--beside") for text in flags.pop("beside")]
    baselines = flags.pop("baselines")
    if baselines is None:
        baselines = () if flags["texts"] else BASELINES.names
    configured = chosen_prefill(manifest.prefill, flags) or manifest.prefill
    arguments = on_device(load_arguments(flags), manifest, configured)
    configured = policy_on_device(configured, arguments["device"])
    if flags["texts"] and not beside and arguments["device"] == "cpu" and isinstance(configured, Query):
        beside = [f"missed={Query.presets['guarded']['missed']:g}"] if configured.missed >= 1 else []
    return contestants(configured, beside, baselines, length, flags.pop("ablate")), arguments


def make_extent(manifest: Manifest, flags: dict[str, Any]) -> Extent:
    """What is not given is the suite's, or as much as fits. Sets a `context` that fits. Raises ConfigError."""
    metrics, needles, suite = flags["metrics"], flags["needles"], flags["suite"]
    length, first, decoded = (flags.pop(name) for name in ("length", "first", "decoded"))
    room = flags["context"] or min(manifest.model.max_position_embeddings, DEFAULT_CONTEXT)
    after = decoded if "decode" in metrics else 0
    if after >= room:
        raise ConfigError(
            f"{after:,} decoded tokens leave no room for a text in a context of {room:,}: lower --decode-tokens",
            field="decoded",
        )
    length = length or (SIZES[suite.suite].length if suite else min(LENGTH, room - after))
    first = first or max(length // 4, 1)
    if length < 16 or first >= length:
        raise ConfigError(
            f"first position {first:,} is not within a text of {length:,} tokens: lower --from or raise --length",
            field="first",
        )
    lengths = needles.each_length or (min(length, room - 64),)
    asked = (needles.each_depth, needles.seeds)
    extent = Extent(length, first, decoded, metrics, lengths if "needle" in metrics else (), *asked)
    if flags["context"] is None:
        flags["context"] = extent.context
    elif flags["context"] < extent.context:
        raise ConfigError(
            f"context is {flags['context']:,}, and {extent.context:,} tokens are needed: raise --ctx-size",
            field="context",
        )
    return extent


def read_documents(
    flags: dict[str, Any], tokenizer: Tokenizer, tokens: int, manifest: Manifest
) -> tuple[Document, ...]:
    """The user's, a suite's, or parts of Python's manual, of so many tokens each."""
    suite, texts, vocabulary = flags["suite"], flags["texts"], manifest.model.vocab_size
    if suite is not None:
        least, most = (1, SIZES[suite.suite].texts) if suite.texts == "auto" else (suite.texts, suite.texts)
        return from_suite(suite.half, tokenizer, tokens, vocabulary, least, most)
    if texts:
        return from_files(texts, tokenizer, tokens, vocabulary)
    return from_manual(tokenizer, tokens, vocabulary)
