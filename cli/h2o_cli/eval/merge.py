"""h2o-eval merge: one report's run of several, which did a part each."""

from __future__ import annotations

from pathlib import Path

import click

from h2o_cli.common import guarded, show
from h2o_cli.effects import CheckedCommand
from h2o_cli.eval.folder import RunFolder
from h2o_cli.output_path import OutputPath


@click.command(cls=CheckedCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "-o",
    "--output",
    type=OutputPath(file_okay=False),
    required=True,
    help="Folder for the joined run.",
)
@guarded
def merge(folders: tuple[Path, ...], output: Path) -> None:
    """Join the FOLDERS of `h2o-eval report --shard`.

    Then the same report command with -o OUTPUT --resume, without --shard, measures what is missing and writes the
    page.
    """
    runs = [RunFolder.read(folder) for folder in folders]
    identity = runs[0].identity
    settings: dict[str, str] = {}
    for run in runs:
        run.check_identity(identity)
        run.check(settings)
        settings |= {value.contestant: value.settings for value in run.values}
    whole = RunFolder.open(output, identity, resume=False)
    for run in runs:
        whole.add([value for value in run.values if value.job not in whole.done])
        for name, found in run.tokens.items():
            whole.tokens[name] = found | whole.tokens.get(name, {}) if isinstance(found, dict) else found
    whole.keep_tokens()
    show(f"{output}: {len(whole.done):,} cases of {len(runs)} runs; report --resume writes the page")
