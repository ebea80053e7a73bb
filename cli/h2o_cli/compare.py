"""h2o-compare: checks that a bundle computes what it should."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.markup import escape
from rich.table import Column, Table

from h2o_cli import usage
from h2o_cli.bundle_argument import as_bundle, bundle_argument
from h2o_cli.common import (
    json_option,
    make_console,
    print_json,
    show,
    start_logging,
    threads_option,
    verbose_option,
)
from h2o_cli.effects import Beside, needing
from h2o_cli.eval.texts import prompt_ids
from h2o_cli.extras import needs_export
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.model_options import Compute, compute_option, execution_options
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import chosen_prefill, prefill_options
from h2o_cli.short_names import FITTING, short_names
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError, CheckpointError, unimportable
from h2o_runtime.names import ProviderName
from h2o_runtime.policies.prefill import PrefillPolicy, Query
from h2o_runtime.process import uncollected

if TYPE_CHECKING:
    from h2o_export.checkpoints import Checkpoint
    from h2o_export.comparison.compared import ComparedBundle
    from h2o_export.comparison.report import Row

STAGES = ("files", "dense", "attention", "pipeline")
DENSE_TOKENS = 64
Progress = Callable[[str], None]


_FIRST = (
    "stages",
    "checkpoint",
    "prompt_file",
    "length",
    "against",
    "backend",
    "device",
    "prefill",
    "threads",
    "as_json",
)


def _in_stages(*names: str) -> Beside:
    return Beside("stages", names)


_comparison_options = grouped(
    Group.COMPARISON,
    click.option(
        "--stage",
        "stages",
        multiple=True,
        type=click.Choice(STAGES),
        default=STAGES,
        help="Run only this stage; repeatable.",
    ),
    needing(
        _in_stages("pipeline"),
        click.option(
            "--checkpoint",
            help="Path or downloaded hub name of the reference checkpoint.  [default: the bundle's source]",
        ),
    ),
    needing(
        _in_stages("attention", "pipeline"),
        click.option(
            "--against",
            type=click.Choice(get_args(ProviderName)),
            help="Also compare log-probabilities with those of this attention provider.",
        ),
    ),
    needing(
        _in_stages("dense", "pipeline"),
        click.option(
            "--prompt-file",
            type=click.Path(path_type=Path),
            help="Prompt.  [default: Python's manual]",
        ),
        click.option(
            "-n",
            "--length",
            type=click.IntRange(2, 32768),
            default=1100,
            show_default=True,
            help="Prompt length in tokens.",
        ),
    ),
    needing(
        _in_stages("dense", "attention"),
        click.option("--save", type=OutputPath(), help="Folder for Polygraphy's input and output files."),
    ),
)
_machine_options = grouped(
    Group.MACHINE,
    needing(
        _in_stages("dense", "attention", "pipeline"),
        execution_options,
        needing(
            _in_stages("dense", "pipeline"), compute_option(Compute), of=("dense_form", "dense_precision")
        ),
        threads_option,
    ),
)


@click.command(cls=HelpfulCommand, first=_FIRST)
@version_option
@bundle_argument
@_comparison_options
@_machine_options
@needing(_in_stages("pipeline"), needing(Beside("against"), prefill_options))
@json_option
@verbose_option
def main(
    bundle: str,
    stages: tuple[str, ...],
    prompt_file: Path | None,
    length: int,
    as_json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Compare BUNDLE, graph by graph and as a whole, with references in float64 and with its checkpoint.

    \b
    files      the hash of every file against the manifest
    dense      each dense graph against its float64 twin
    attention  each attention graph against the ONNX function bodies in float64
    pipeline   log-probabilities under full attention against transformers; with --against also those
               under the policy of --prefill, of both attention providers

    For integer weights and bfloat16 products, the loss from rounding has rows of its own (rounding, quantization).
    The policy of --prefill is by default h2o with small chunks, so that a prompt of 1,100 tokens has several.
    Exit code 3: a tolerance was missed.
    """
    start_logging(verbose)
    opened = Bundle.open(as_bundle(bundle), check_graphs=False)
    prefill, library = chosen_prefill(_small(), flags) or _small(), _import_comparison()
    ids, named = prompt_ids(opened, prompt_file, length), flags.pop("checkpoint")
    reference, notes = _reference(opened, named) if "pipeline" in stages else (None, [])
    weights = opened.manifest.model.weights
    if weights is not None and weights.named:
        notes.append(f"matrices of layers: {weights.shares}")
    compute = flags.pop("compute")
    compared = library.ComparedBundle(
        opened,
        flags.pop("backend"),
        flags.pop("device"),
        compute.attention,
        flags.pop("threads"),
        compute.dense_form,
        compute.attention_precision,
        compute.dense_precision,
    )
    console = make_console(stderr=True)
    with console.status("comparing") as status:
        rows = _run(library, compared, stages, ids, prefill, reference, notes, status.update, **flags)
    failed = next((row for row in rows if not row.passed), None)
    if as_json:
        first = f"{failed.graph}: {failed.output}" if failed else None
        print_json(
            {
                "passed": failed is None,
                "first_failure": first,
                "notes": notes,
                "rows": [r.to_json() for r in rows],
            }
        )
    else:
        _show(rows, notes)
    if failed:
        where = f"{failed.graph} differs first ({failed.stage}, {failed.output})"
        click.echo(f"error: {where}: {failed.reason}", err=True)
        sys.exit(usage.Exit.TOLERANCE)


def _small() -> PrefillPolicy[Any]:
    """The default policy with sizes of which a prompt has several."""
    return Query(chunk_size=256, batch_size=1024, local=64, heavy=64, queries=16, grow=512)


def _run(
    library: Any,
    compared: ComparedBundle,
    stages: Sequence[str],
    ids: list[int],
    prefill: PrefillPolicy[Any],
    reference: Checkpoint | None,
    notes: list[str],
    progress: Progress,
    *,
    against: Any,
    save: Path | None,
) -> list[Row]:
    """Adds to `notes`. reference: the checkpoint that the pipeline is compared with; None: it is not."""
    rows: list[Row] = []
    comparison = library.GraphComparison(compared, save)
    try:
        if "files" in stages:
            progress("files")
            rows += library.compare_files(compared.bundle)
        if "dense" in stages:
            rows += comparison.dense(ids[:DENSE_TOKENS], progress)
        if "attention" in stages:
            rows += comparison.attention([compared.attention] + ([against] if against else []), progress)
        if "pipeline" in stages:
            whole = library.PipelineComparison(compared, ids)
            if against:
                rows += whole.between(prefill, against, progress)
            if reference is not None:
                rows += whole.against_checkpoint(reference, progress)
    except BundleError as error:
        if all(row.passed for row in rows):
            raise
        notes.append(f"not compared any further: {error}")  # the earlier difference explains this one
    return rows


def _reference(bundle: Bundle, named: str | None) -> tuple[Checkpoint | None, list[str]]:
    """The named checkpoint, or the bundle's own if it still exists; None, with a note, if not.

    Raises CheckpointError for another one than the bundle's: before the work, which takes minutes.
    """
    from h2o_export.checkpoints import open_checkpoint

    origin = bundle.manifest.checkpoint
    if named is None and not Path(origin.source).exists():
        return None, [f"no comparison with transformers: {origin.source} is not here; give --checkpoint"]
    context = bundle.manifest.model.max_position_embeddings
    adapter = None if origin.adapter is None else Path(origin.adapter)
    checkpoint = open_checkpoint(named or origin.source, context, adapter=adapter)
    if checkpoint.sha256() != origin.sha256:
        raise CheckpointError(
            f"{checkpoint.source} is not the checkpoint that {bundle.folder} was exported from (its hash differs): "
            "name that one with --checkpoint"
        )
    return checkpoint, []


def _import_comparison() -> Any:
    try:
        with uncollected():
            import transformers  # noqa: F401
            from polygraphy.logger import G_LOGGER

            from h2o_export import comparison
    except ImportError as error:
        raise unimportable(error, needs_export("comparing", error)) from None
    G_LOGGER.module_severity = G_LOGGER.CRITICAL  # this command prints its own report
    return comparison


def _show(rows: Sequence[Row], notes: Sequence[str]) -> None:
    # Names are not cut on a narrow terminal: readers look for them. Those of policies go on in the next line.
    table = Table(
        Column("stage", no_wrap=True),
        Column("graph", min_width=FITTING),
        Column("output", no_wrap=True),
        Column("by", no_wrap=True),
        Column("against", no_wrap=True),
        "max error",
        "mean",
        "p99",
        "tolerance",
        "",
        title="comparison",
    )
    names = short_names(row.graph for row in rows)
    for row in rows:
        verdict = "[green]good[/]" if row.passed else "[red]MISSED[/]"
        numbers = (row.max_error, row.mean_error, row.quantile_error, row.tolerance)
        table.add_row(
            *map(escape, (row.stage, names[row.graph], row.output, row.subject, row.reference)),
            *(f"{number:.2g}" for number in numbers),
            verdict,
        )
    texts = (*(f"{row.graph}: {row.note}" for row in rows if row.note), *notes)
    missed = sum(not row.passed for row in rows)
    verdict = f"{missed:,} beyond their tolerance" if missed else "all within their tolerance"
    show(table, *map(escape, texts), f"{len(rows):,} rows, {verdict}")


if __name__ == "__main__":
    main()
