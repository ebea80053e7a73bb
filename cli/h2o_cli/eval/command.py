"""h2o-eval: what a prefill rule costs in quality, on one's own model and text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from h2o_cli.bench.options import Lengths
from h2o_cli.bench.picture import import_pyplot
from h2o_cli.common import (
    Exit,
    guarded,
    json_option,
    print_json,
    show,
    start_logging,
    verbose_option,
)
from h2o_cli.eval.contestants import Kind
from h2o_cli.eval.folder import RunFolder
from h2o_cli.eval.options import eval_options, make_contestants, make_extent
from h2o_cli.eval.plan import Extent, Measurer
from h2o_cli.eval.sanity import Sanity
from h2o_cli.eval.screen import comparison, scores
from h2o_cli.eval.summary import Summary, summarize
from h2o_cli.eval.sweep import Sweep
from h2o_cli.eval.texts import Document, from_files, from_manual
from h2o_cli.eval.values import Value, to_json
from h2o_cli.model_options import load_arguments, model_options
from h2o_cli.prefill_options import prefill_config, prefill_options
from h2o_cli.progress import stages
from h2o_runtime import Generator
from h2o_runtime.errors import BackendError, Cancelled, ConfigError
from h2o_runtime.manifest import Manifest
from h2o_runtime.text import Tokenizer

log = logging.getLogger(__name__)

ANSWER_ROOM = 256  # tokens of a harness's answer
MANUALS = 2  # pieces of Python's manual, where no text is named
Defaults = dict[str, Any]
ONCE: Defaults = {"length": 4096, "decoded": 128, "metrics": ("perplexity", "decode", "recall"), "seeds": 3}
REPORT: Defaults = ONCE | {"metrics": ("perplexity", "decode", "recall", "needle")}
QUICK: Defaults = REPORT | {"length": 3072, "decoded": 32, "seeds": 1}


class Commands(click.Group):
    """A group whose first word may also be a bundle: then it is `measure` that is meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["measure", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A flag before the bundle belongs to `measure` as well."""
        if args and args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["measure", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="[measure] BUNDLE | report BUNDLE -o DIR",
)
def main() -> None:
    """Measure what sparse prefill costs in quality, beside full attention.

    h2o-eval BUNDLE prints a table of the configured rule, of full attention and of baselines with as many keys;
    h2o-eval report BUNDLE -o DIR also varies every setting, and writes a page with plots.
    """


@main.command()
@eval_options
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="PERCENT",
    help="Exit with 3 where the rule's perplexity rises by more.",
)
@guarded
def measure(bundle: Path, as_json: bool, verbose: int, tolerance: float | None, **flags: Any) -> None:
    """Measure BUNDLE's rule, or the one that the flags say, beside full attention.

    Exit code 3: the increase is above --tolerance, or the model knows too little for any to be seen.
    """
    start_logging(verbose)
    manifest = Manifest.read(bundle)
    found = make_contestants(manifest, flags, ablate=False)
    extent = make_extent(manifest, flags, ONCE)
    tokenizer = Tokenizer.load(bundle)
    documents = read_documents(flags.pop("texts"), MANUALS, tokenizer, extent, manifest)
    with Generator.load(bundle, **load_arguments(flags)) as generator:
        check_host(generator, extent)
        measurer = Measurer(generator, tokenizer, documents, found, extent)
        sanity, values = _run(measurer)
    summaries = summarize(values)
    if as_json:
        print_json(document(bundle, manifest, extent, documents, sanity, summaries, values))
    else:
        show(*comparison(bundle.name, extent, documents, sanity, summaries))
    if tolerance is not None:
        _judge(summaries, sanity, tolerance)


@main.command()
@eval_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for the page, the rows and what a stopped run needs to go on.",
)
@click.option("--resume", is_flag=True, help="Keep what is done in the folder of --output, and go on.")
@click.option("--quick", is_flag=True, help="One short text: some minutes for a small model.")
@click.option(
    "--ablate/--no-ablate", default=True, show_default=True, help="Also the rule with each setting changed."
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
    """Measure BUNDLE's rule and whatever differs from it in one setting, and write a page with plots.

    The folder gets report.html, which needs nothing else, and rows.csv. A run that is stopped writes the page of
    what it has; the same command with --resume goes on.
    """
    start_logging(verbose)
    import_pyplot()  # before an hour of measuring, not after
    manifest = Manifest.read(bundle)
    found = make_contestants(manifest, flags, ablate)
    extent = make_extent(manifest, flags, QUICK if quick else REPORT)
    tokenizer = Tokenizer.load(bundle)
    count = 1 if quick else MANUALS
    documents = read_documents(flags.pop("texts"), count, tokenizer, extent, manifest)
    sweep = Sweep(bundle, manifest, found, documents, extent)
    with Generator.load(bundle, **load_arguments(flags)) as generator:
        check_host(generator, extent)
        folder = RunFolder.open(output, sweep.identity(), resume)
        folder.check({one.name: one.settings for one in found})
        sanity, stopped = sweep.run(generator, tokenizer, folder)
    page = folder.write_page(sweep.page(sanity, folder))
    summaries = summarize(folder.values)
    if as_json:
        print_json(document(bundle, manifest, extent, documents, sanity, summaries, folder.values))
    else:
        show(*comparison(bundle.name, extent, documents, sanity, summaries), escape(f"{page}: the page"))
    if stopped:
        raise Cancelled("stopped by Ctrl-C")


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--tasks", required=True, metavar="NAMES", help="lm-eval's, as niah_single_1,ruler_vt.")
@click.option("--lengths", type=Lengths(), default="4096", show_default=True, help="Of RULER's prompts.")
@click.option("--limit", type=click.IntRange(min=1), help="Samples of a task.  [default: all]")
@prefill_options
@model_options
@json_option
@verbose_option
@guarded
def harness(
    bundle: Path,
    tasks: str,
    lengths: tuple[int, ...],
    limit: int | None,
    as_json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Run tasks of lm-eval, the evaluation harness, on BUNDLE under one prefill rule.

    Needs the package: pip install 'h2o-edge[harness]'. RULER's needle, vt, cwe and fwe need no download.
    """
    start_logging(verbose)
    config = prefill_config(Manifest.read(bundle).prefill, flags)
    run_tasks = import_harness()
    flags["context"] = flags["context"] or max(lengths) + ANSWER_ROOM
    with Generator.load(bundle, **load_arguments(flags)) as generator:
        results = run_tasks(generator, bundle, config, tasks.split(","), lengths, limit)
    if as_json:
        print_json(results)
    else:
        show(*scores(bundle.name, config.in_short(), results))


def import_harness() -> Callable[..., dict[str, dict[str, float]]]:
    """Raises BackendError where lm-eval is not installed."""
    try:
        from h2o_cli.eval.harness import run_tasks
    except ImportError as error:
        raise BackendError(
            f"tasks of lm-eval need its package ({error}): pip install 'h2o-edge[harness]'"
        ) from None
    return run_tasks


def read_documents(
    texts: tuple[Path, ...], count: int, tokenizer: Tokenizer, extent: Extent, manifest: Manifest
) -> tuple[Document, ...]:
    """The user's, or `count` pieces of what Python brings."""
    vocabulary = manifest.model.vocab_size
    if texts:
        return from_files(texts, tokenizer, extent.text_tokens, vocabulary)
    return from_manual(count, tokenizer, extent.text_tokens, vocabulary)


def check_host(generator: Generator, extent: Extent) -> None:
    """Raises ConfigError where the recall is asked for on a device whose memory it cannot look into."""
    if "recall" in extent.metrics and generator.device.memory != "cpu":
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
    """Everything that was found out, for machines."""
    return {
        "model": bundle.resolve().name,
        "checkpoint_sha256": manifest.checkpoint.sha256,
        "extent": asdict(extent),
        "texts": [{"name": one.name, "sha256": one.sha256} for one in documents],
        "sanity": asdict(sanity),
        "summary": [asdict(one) for one in summaries],
        "values": to_json(values),
    }


def _run(measurer: Measurer) -> tuple[Sanity, list[Value]]:
    jobs, values = list(measurer.jobs()), []
    width = max((len(job.title) for job in jobs), default=8)
    with stages("reading", len(jobs) + 1, width) as stage:
        stage("sanity")
        sanity = measurer.sanity()
        for job in jobs:
            stage(job.title)
            values += job.run()
    return sanity, values


def _judge(summaries: list[Summary], sanity: Sanity, tolerance: float) -> None:
    """Leave with 3 where the configured rule is not within the tolerance, or nothing can be said."""
    (rule,) = (one for one in summaries if one.kind == Kind.RULE.value)
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
