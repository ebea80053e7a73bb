"""h2o-eval: the loss of quality from a prefill rule, on the user's own model and text."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from h2o_cli import usage
from h2o_cli.common import (
    Exit,
    NotNegative,
    guarded,
    print_json,
    show,
    start_logging,
)
from h2o_cli.effects import needing
from h2o_cli.eval.announce import announce_subject, announce_time
from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.folder import RunFolder
from h2o_cli.eval.options import FIRST, eval_options, make_contestants, make_extent, of_metrics
from h2o_cli.eval.plan import Extent, Measurer
from h2o_cli.eval.sanity import Sanity
from h2o_cli.eval.screen import comparison
from h2o_cli.eval.suite import SIZES, TEXTS, Half, Suite
from h2o_cli.eval.summary import Summary, summarize
from h2o_cli.eval.sweep import Sweep
from h2o_cli.eval.texts import Document, from_files, from_manual, from_sources
from h2o_cli.eval.values import Value, to_json
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.output_path import OutputPath
from h2o_cli.progress import stages
from h2o_cli.pyplot import import_pyplot
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import Cancelled, ConfigError
from h2o_runtime.text import Tokenizer

log = logging.getLogger(__name__)

MANUALS = 2  # parts of Python's manual, if no text is named
Defaults = dict[str, Any]
METRICS = ("decode", "perplexity", "recall")  # of one measurement; a report has needles too
FULL: Defaults = {"length": 4096, "decoded": 256, "seeds": 3}
QUICK: Defaults = {"length": 3072, "decoded": 32, "seeds": 1}


class Commands(usage.Group):
    """A group whose first word may also be a bundle, which means `measure`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["measure", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A flag before the bundle belongs to `measure` too."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx), "--version"):
            args = ["measure", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="[measure] BUNDLE | report BUNDLE -o DIR",
)
@version_option
def main() -> None:
    """Measure the loss of quality from sparse prefill, compared with full attention.

    h2o-eval BUNDLE prints a table of the configured rule, of full attention and of baselines with the same number
    of keys. h2o-eval report BUNDLE -o DIR also varies every setting, and writes a page with plots. h2o-eval measure
    --help shows the options of h2o-eval BUNDLE.
    """


@main.command(cls=HelpfulCommand, first=(*FIRST, "tolerance"))
@eval_options(METRICS)
@grouped(
    Group.MEASUREMENT,
    needing(
        of_metrics("decode", "perplexity"),
        click.option(
            "--tolerance",
            type=NotNegative(),
            metavar="PERCENT",
            help="Exit with code 3 if the rule's perplexity is more than so many percent above full attention's.",
        ),
    ),
)
@guarded
def measure(bundle: Path, as_json: bool, verbose: int, tolerance: float | None, **flags: Any) -> None:
    """Measure BUNDLE's rule, or the rule of the flags, compared with full attention.

    Exit code 3: the increase is above --tolerance, or the model is too weak to show one.
    """
    start_logging(verbose)
    manifest = Manifest.read(bundle)
    extent = make_extent(manifest, flags, FULL)
    found, arguments = make_contestants(manifest, flags, extent, ablate=False)
    tokenizer = Tokenizer.load(bundle)
    manual = not (flags["texts"] or flags["suite"])
    documents = read_documents(flags, MANUALS, tokenizer, extent, manifest)
    announce_subject(found, documents, extent, manual)
    with Generator.load(bundle, **arguments) as generator:
        check_host(generator, extent)
        measurer = Measurer(generator, tokenizer, documents, found, extent, _chat_frame(bundle, extent))
        sanity, values = _run(measurer)
    summaries = summarize(values)
    if as_json:
        print_json(document(bundle, manifest, extent, documents, sanity, summaries, values))
    else:
        show(*comparison(bundle.name, extent, documents, sanity, summaries))
    if tolerance is not None:
        _judge(summaries, sanity, tolerance)


@main.command(cls=HelpfulCommand, first=("output", "resume", "quick", *FIRST))
@eval_options((*METRICS, "needle"))
@grouped(
    Group.MEASUREMENT,
    click.option(
        "-o",
        "--output",
        type=OutputPath(file_okay=False),
        required=True,
        help="Folder for the page, the rows, and the data to continue a stopped run.",
    ),
    click.option("--resume", is_flag=True, help="Continue the run in the folder of --output."),
    click.option("--quick", is_flag=True, help="One short text: a few minutes for a small model."),
    click.option(
        "--ablate/--no-ablate",
        default=True,
        show_default=True,
        help="Also measure the rule with each setting changed, one at a time.",
    ),
)
@guarded
def report(
    bundle: Path,
    output: Path,
    resume: bool,
    quick: bool,
    ablate: bool,
    as_json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Measure BUNDLE's rule and variants with one setting changed, and write a page with plots.

    The folder gets report.html, one self-contained file, and rows.csv. A stopped run writes the page of its results
    so far; the same command with --resume continues it.
    """
    start_logging(verbose)
    import_pyplot()  # before an hour of measuring, not after
    manifest = Manifest.read(bundle)
    extent = make_extent(manifest, flags, QUICK if quick else FULL)
    found, arguments = make_contestants(manifest, flags, extent, ablate)
    tokenizer = Tokenizer.load(bundle)
    count = 1 if quick else MANUALS
    manual = not (flags["texts"] or flags["suite"])
    documents = read_documents(flags, count, tokenizer, extent, manifest)
    announce_subject(found, documents, extent, manual)
    sweep = Sweep(bundle, manifest, found, documents, extent, _chat_frame(bundle, extent))
    with Generator.load(bundle, **arguments) as generator:
        check_host(generator, extent)
        folder = RunFolder.open(output, sweep.identity(), resume)
        folder.check({contestant.name: contestant.settings for contestant in found})
        sanity, stopped = sweep.run(generator, tokenizer, folder)
    page = folder.write_page(sweep.page(sanity, folder))
    summaries = summarize(folder.values)
    if as_json:
        print_json(document(bundle, manifest, extent, documents, sanity, summaries, folder.values))
    else:
        show(*comparison(bundle.name, extent, documents, sanity, summaries), escape(f"{page}: the page"))
    if stopped:
        raise Cancelled("stopped by a signal")


def _chat_frame(bundle: Path, extent: Extent) -> ChatFrame:
    return ChatFrame.of(bundle) if extent.asks else ChatFrame()


def read_documents(
    flags: dict[str, Any], count: int, tokenizer: Tokenizer, extent: Extent, manifest: Manifest
) -> tuple[Document, ...]:
    """The user's, a suite's, or `count` parts of Python's manual. Takes its own arguments out of `flags`."""
    vocabulary = manifest.model.vocab_size
    texts, suite = flags.pop("texts"), flags.pop("suite")
    if suite is not None:
        limit = None if suite.texts == "auto" else suite.texts
        return _read_suite(SIZES[suite.suite], suite.half, limit, tokenizer, extent, vocabulary)
    if texts:
        return from_files(texts, tokenizer, extent.text_tokens, vocabulary)
    return from_manual(count, tokenizer, extent.text_tokens, vocabulary)


def _read_suite(
    suite: Suite, half: Half, limit: int | None, tokenizer: Tokenizer, extent: Extent, vocabulary: int
) -> tuple[Document, ...]:
    """`most` texts, or up to as many as the suite has. Raises ConfigError if there are fewer, or none."""
    tokens, wanted = extent.text_tokens, limit or suite.texts
    if wanted > len(TEXTS[half]):
        raise ConfigError(
            f"the half {half!r} has {len(TEXTS[half])} texts: lower texts of `suite`", field="suite"
        )
    found = from_sources(TEXTS[half], tokenizer, tokens, vocabulary, wanted)
    if len(found) < (limit or 1):
        raise ConfigError(
            f"the half {half!r} has {len(found)} texts of {tokens:,} tokens: lower texts of `suite`, `length` or "
            "`decoded`",
            field="suite",
        )
    if len(found) < wanted:
        log.warning("only %d of the suite's %d texts have %s tokens", len(found), wanted, f"{tokens:,}")
    return found


def check_host(generator: Generator, extent: Extent) -> None:
    """Raises ConfigError if recall is requested on a device whose memory it cannot read."""
    if "recall" in extent.metrics and generator.spec.device.memory != "cpu":
        raise ConfigError(
            "the recall is measured in the host's memory: choose --device cpu, or leave recall out of --metrics",
            field="metrics",
        )


def document(
    bundle: Path,
    manifest: Manifest,
    extent: Extent,
    documents: tuple[Document, ...],
    sanity: Sanity,
    summaries: list[Summary],
    values: list[Value],
) -> dict[str, Any]:
    """All results, for machines."""
    return {
        "model": bundle.resolve().name,
        "checkpoint_sha256": manifest.checkpoint.sha256,
        "extent": asdict(extent),
        "texts": [{"name": document.name, "sha256": document.sha256} for document in documents],
        "sanity": asdict(sanity),
        "summary": [asdict(summary) for summary in summaries],
        "values": to_json(values),
    }


def _run(measurer: Measurer) -> tuple[Sanity, list[Value]]:
    jobs, values = measurer.jobs(), []
    announce_time(jobs, measurer)
    width = max((len(job.title) for job in jobs), default=8)
    with stages("reading", len(jobs) + 1, width, lines=True) as stage:
        stage("sanity")
        sanity = measurer.sanity()
        for job in jobs:
            stage(job.title)
            values += job.run()
    return sanity, values


def _judge(summaries: list[Summary], sanity: Sanity, tolerance: float) -> None:
    """Exit with 3 if the configured rule is not within the tolerance, or no statement is possible."""
    (rule,) = (summary for summary in summaries if summary.kind == Kind.RULE.value)
    rises = [rise for rise in (rule.increase, rule.decoded_increase) if rise is not None]
    if sanity.problems:
        reason = f"nothing can be said of {rule.contestant}: {sanity.problems[0]}"
    elif any(100 * rise > tolerance for rise in rises):
        reason = (
            f"{rule.contestant} raises the perplexity by {max(rises):.2%}, and {tolerance:g} % are allowed"
        )
    else:
        return
    click.echo(f"error: {reason}", err=True)
    sys.exit(Exit.TOLERANCE)


if __name__ == "__main__":
    main()
