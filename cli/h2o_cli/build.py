"""h2o-build: bundle → TensorRT engines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import click
from rich.markup import escape
from rich.table import Table

from h2o_cli import usage
from h2o_cli.bundle_argument import as_bundle, bundle_argument
from h2o_cli.common import json_option, print_json, show, start_logging, verbose_option
from h2o_cli.help import version_option
from h2o_cli.progress import stages
from h2o_cli.settings_text import SettingsText, numbers_in
from h2o_export.engines.selection import BuildOptions, EngineSelection, check_folder, select_engines
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.components.options import Configuration, option
from h2o_runtime.engines import EngineManifest, Machine, Profile
from h2o_runtime.engines.machine import find_plugins
from h2o_runtime.errors import ConfigError, unimportable
from h2o_runtime.names import TargetName


@dataclass(frozen=True)
class TargetSettings(Configuration):
    """What engines are built for. Whether the machine and the bundle have it is checked by `select_engines`."""

    title: ClassVar[str] = "what engines are built for"

    target: TargetName = option("tensorrt", "the TensorRT to build with")
    sm: str = option(
        "",
        "compute capability to build for, such as 87; with tensorrt-rtx several; default: this machine's GPU",
    )
    profiles: Literal["auto"] | int = option(
        "auto",
        "profiles of a dense engine: 2 for one token and a batch, 1 for both; auto: 2, unless that stores weights "
        "twice",
        least=1,
    )
    plugins: str = option(
        "", "the plugin library libh2o_trt_plugins.so; default: the one installed with h2o-edge"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.profiles not in ("auto", 1, 2):
            raise ConfigError(f"profiles must be auto, 1 or 2, but is {self.profiles}", field="profiles")
        self.capabilities  # noqa: B018 (checks the list)

    @property
    def capabilities(self) -> tuple[int, ...]:
        return numbers_in(self.sm, "sm") if self.sm else ()

    @property
    def library(self) -> Path | None:
        return Path(self.plugins) if self.plugins else None


@click.command(cls=usage.Command, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
@bundle_argument
@click.option(
    "--target",
    type=SettingsText(TargetSettings, first="target"),
    required=True,
    help='The TensorRT to build with, and how: "tensorrt-rtx sm=87,90"; help prints all there is.',
)
@click.option(
    "-c",
    "--ctx-size",
    "max_context",
    type=click.IntRange(min=1),
    default=16384,
    show_default=True,
    help="Maximum tokens of prompt and answer together.",
)
@click.option(
    "-b", "--batch-size", type=int, help="Maximum tokens in one dense call.  [default: the bundle's]"
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be built; needs no TensorRT and writes nothing."
)
@click.option("--force", is_flag=True, help="Replace existing engines.")
@json_option
@verbose_option
def main(
    bundle: str,
    target: TargetSettings,
    max_context: int,
    batch_size: int | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
    verbose: int,
) -> None:
    """Build TensorRT engines from BUNDLE, into its folder engines/TARGET.

    \b
    tensorrt      dense and attention graphs, on the GPU that will run them (a Jetson, for example)
    tensorrt-rtx  dense graphs, for any GPU that TensorRT for RTX knows, also on a machine without a GPU

    An engine runs only with the TensorRT version that built it.
    """
    start_logging(verbose)
    plugins, profiles = target.library, None if target.profiles == "auto" else target.profiles
    options = BuildOptions(
        *(target.target, target.capabilities, max_context, batch_size, profiles, plugins, force)
    )
    selection = select_engines(Bundle.open(as_bundle(bundle)), options)
    if dry_run:
        check_folder(selection)
        if plugins is not None:
            find_plugins(plugins)
        print_json(selection.to_json()) if as_json else _show_selection(selection)
        return
    machine = Machine.here(target.target, plugins)
    build = _import_builder()
    with stages("engines", len(selection.engines), 12) as stage:
        manifest = build(selection, machine, stage)
    if as_json:
        print_json({"folder": str(selection.folder), **manifest.model_dump()})
    else:
        _show_result(selection, manifest)


def _import_builder() -> Callable[[EngineSelection, Machine, Callable[[str], None]], EngineManifest]:
    try:
        from h2o_export.engines.build import build
    except ImportError as error:
        raise unimportable(
            error, f"building engines needs one more package ({error}): pip install onnx"
        ) from None
    return build


def _show_selection(selection: EngineSelection) -> None:
    table = Table("engine", "profile", "input", "least", "tuned for", "most", title="engines")
    for profiles, group in itertools.groupby(selection.engines, key=lambda engine: engine.profiles):
        names = [engine.name for engine in group]  # all middle layers are one row
        for profile in profiles:
            _add_rows(table, names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}", profile)
    show(
        table,
        escape(
            f"dry run: {len(selection.engines)} engines would be written to {selection.folder}; nothing was written"
        ),
    )


def _add_rows(table: Table, engine: str, profile: Profile) -> None:
    for name, shape in profile.shapes.items():
        sizes = (" × ".join(map(str, size)) or "scalar" for size in (shape.min, shape.opt, shape.max))
        table.add_row(engine, profile.name, name, *sizes)


def _show_result(selection: EngineSelection, manifest: EngineManifest) -> None:
    total = sum(file.bytes for file in manifest.files.values())
    gpus = ", ".join(f"SM{sm}" for sm in manifest.sm)
    show(
        escape(
            f"wrote {selection.folder}: {len(manifest.engines)} engines for {gpus}, {total / 2**20:,.1f} MiB, "
            f"with {selection.target.title} {manifest.tensorrt}, up to {manifest.max_context:,} tokens of context"
        )
    )


if __name__ == "__main__":
    main()
