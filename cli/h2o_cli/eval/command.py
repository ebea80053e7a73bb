"""h2o-eval: the loss of quality from a prefill rule, on the user's own model and text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from h2o_cli import usage
from h2o_cli.bundle_argument import as_bundle
from h2o_cli.common import print_json, show, start_logging
from h2o_cli.eval.advice import advice
from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.measuring import Extent, Measurer
from h2o_cli.eval.metrics import Sanity
from h2o_cli.eval.needles import ChatFrame
from h2o_cli.eval.options import eval_options, make_contestants, make_extent, read_documents
from h2o_cli.eval.results import Summary, comparison, summarize
from h2o_cli.eval.texts import Document
from h2o_cli.help import HelpfulCommand, version_option
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import ConfigError
from h2o_runtime.text import Tokenizer

_FIRST = (
    *("texts", "suite", "length", "metrics", "beside", "baselines", "ablate", "pictures"),
    *("prefill", "context", "threads", "as_json", "tolerance"),
)


@click.command(cls=HelpfulCommand, first=_FIRST)
@version_option
@eval_options
def main(
    bundle: str, as_json: bool, verbose: int, tolerance: float | None, pictures: Path | None, **flags: Any
) -> None:
    """Measure the loss of quality from sparse prefill, compared with full attention.

    A table shows BUNDLE's rule or that of the flags, full attention, and baselines with as many keys. Exit code 3:
    the increase is above --tolerance, or the model is too weak to show one.
    """
    start_logging(verbose)
    folder = as_bundle(bundle)
    manifest = Manifest.read(folder)
    extent = make_extent(manifest, flags)
    found, arguments = make_contestants(manifest, flags, extent.length)
    tokenizer = Tokenizer.load(folder)
    documents = read_documents(flags, tokenizer, extent.text_tokens, manifest)
    if pictures:
        from h2o_cli.eval.pictures import check_folder, draw

        check_folder(pictures)
    _announce(found, documents, extent, manual=not (flags["texts"] or flags["suite"]))
    frame = ChatFrame.of(folder) if extent.needles else ChatFrame()
    with Generator.load(folder, **arguments) as generator:
        _check_host(generator, extent)
        sanity, values = Measurer(generator, tokenizer, documents, found, extent, frame).run()
    summaries = summarize(values)
    drawn = draw(pictures, values, summaries) if pictures else []
    if as_json:
        print_json(
            {
                "model": folder.resolve().name,
                "checkpoint_sha256": manifest.checkpoint.sha256,
                "extent": asdict(extent),
                "texts": [{"name": document.name, "sha256": document.sha256} for document in documents],
                "sanity": asdict(sanity),
                "summary": [asdict(summary) for summary in summaries],
                "values": [asdict(value) for value in values],
            }
        )
    else:
        show(*comparison(folder.name, extent.in_words(documents), sanity, summaries))
        if not sanity.problems and (advised := advice(summaries)):
            show(escape(advised))
        show(*(escape(f"{pictures}: {', '.join(drawn)}") for _ in drawn[:1]))
    if tolerance is not None:
        _judge(summaries, sanity, tolerance)


def _announce(
    contestants: Sequence[Contestant], documents: Sequence[Document], extent: Extent, manual: bool
) -> None:
    """On standard error: what is compared, and on which texts. manual: parts of Python's manual, because the user
    named no text.
    """
    rule = next(contestant.name for contestant in contestants if contestant.kind is Kind.RULE)
    kinds = (Kind.TRUTH, Kind.VARIANT, Kind.BASELINE)
    beside = ", ".join(contestant.name for contestant in contestants if contestant.kind in kinds)
    changed = sum(contestant.kind is Kind.ABLATION for contestant in contestants)
    more = f", and {changed} times with one setting changed" if changed else ""
    texts = ", ".join(document.name for document in documents)
    own = " (--text FILE takes your own)" if manual else ""
    click.echo(f"measuring {rule} beside {beside}{more}", err=True)
    click.echo(f"texts of {extent.text_tokens:,} tokens: {texts}{own}", err=True)


def _check_host(generator: Generator, extent: Extent) -> None:
    """Raises ConfigError if recall is requested on a device whose memory it cannot read."""
    if "recall" in extent.metrics and generator.spec.device.memory != "cpu":
        raise ConfigError(
            "the recall is measured in the host's memory: choose --device cpu, or leave recall out of --metrics",
            field="metrics",
        )


def _judge(summaries: Sequence[Summary], sanity: Sanity, tolerance: float) -> None:
    """Exit with 3 if the configured rule is not within the tolerance, or no statement is possible."""
    (rule,) = (summary for summary in summaries if summary.kind is Kind.RULE)
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
    sys.exit(usage.Exit.TOLERANCE)


if __name__ == "__main__":
    main()
