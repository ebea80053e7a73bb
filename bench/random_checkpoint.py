"""Write a randomly initialised checkpoint of a known shape, to measure an export without downloading a model.

python bench/random_checkpoint.py llama-3.2-1b FOLDER
"""

from __future__ import annotations

from pathlib import Path

import click

from h2o_cli.bench import random_checkpoint
from h2o_cli.bench.shapes import SHAPES


@click.command()
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="bfloat16")
def main(shape: str, folder: Path, dtype: str) -> None:
    """Write a random checkpoint of SHAPE into the new folder FOLDER."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise click.UsageError(f"{folder} exists: give a folder that does not") from error
    random_checkpoint.write(SHAPES[shape], folder, dtype)


if __name__ == "__main__":
    main()
