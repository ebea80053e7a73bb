"""h2o-export: checkpoint → bundle."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from h2o_cli import usage
from h2o_cli.common import (
    argument_text,
    json_option,
    print_json,
    show,
    start_logging,
    verbose_option,
)
from h2o_cli.effects import NotBeside, needing
from h2o_cli.extras import needs_export
from h2o_cli.help import Group, HelpfulCommand, grouped, version_option
from h2o_cli.kept_options import kept_options
from h2o_cli.model_options import chat_template_option
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import chosen_prefill, prefill_options
from h2o_cli.progress import stages
from h2o_cli.settings_text import SettingsText
from h2o_cli.verdict import missed, validation_table, warn_of_loss
from h2o_export.staging import check_output, staged_folder
from h2o_runtime.bundles.manifest import GraphSpec, Manifest, TensorSpec
from h2o_runtime.components.options import Configuration, option
from h2o_runtime.errors import ConfigError, OutputError, unimportable
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.ort.cuda import import_onnxruntime
from h2o_runtime.policies.prefill import Query
from h2o_runtime.process import uncollected

if TYPE_CHECKING:
    from h2o_export.architecture.config import ModelConfig
    from h2o_export.preview import ExportPreview

NO_TEXT = "none"  # of `calibrate`


@dataclass(frozen=True)
class WeightSettings(Configuration):
    """How matrices are stored. Names are those of h2o_export.formats, which imports slowly."""

    title: ClassVar[str] = "how weight matrices are stored"

    weights: Literal["stored", "float", "int8", "int4"] = option(
        "stored",
        "format of matrices: stored is that of the checkpoint, matrix by matrix; float is --dtype; integers have a "
        "scale per block",
    )
    block_size: int = option(32, "integers that share a scale: 16, 32, 64, 128 or 256")
    head: Literal["auto", "float", "int8", "int4"] = option(
        "auto",
        "format of the language-model head, and of an embedding tied to it; auto: float, or int8 beside integers",
    )
    calibrate: str = option(
        "",
        f"text to calibrate integers with, or {NO_TEXT} to round them to nearest; default: Python's manual",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size not in _BLOCK_SIZES:
            sizes = ", ".join(map(str, _BLOCK_SIZES))
            raise ConfigError(
                f"block_size must be one of {sizes}, but is {self.block_size}", field="block_size"
            )

    @property
    def idle(self) -> dict[str, str]:
        """Settings that change nothing, and why."""
        reasons = {}
        if self.weights in ("stored", "float"):
            reasons["calibrate"] = "needs weights int8 or int4"
        if not {self.weights, self.head} & {"stored", "int8", "int4"}:
            reasons["block_size"] = "needs weights or a head of int8 or int4"
        return reasons

    def choices(self) -> tuple[str, int, str | None, Path | None, bool]:
        """The last fields of ExportOptions."""
        text = Path(self.calibrate) if self.calibrate not in ("", NO_TEXT) else None
        head = None if self.head == "auto" else self.head
        return self.weights, self.block_size, head, text, self.calibrate != NO_TEXT


_BLOCK_SIZES = (16, 32, 64, 128, 256)
_FIRST = (
    "output",
    "weights",
    "dtype",
    "context",
    "prefill",
    "dry_run",
    "validate",
    "force",
    "as_json",
)
_weight_options = grouped(
    Group.WEIGHTS,
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float16"]),
        default="float32",
        show_default=True,
        help="Precision of activations, and of weights that stay floats.",
    ),
    click.option(
        "--weights",
        type=SettingsText(WeightSettings, first="weights"),
        default=WeightSettings(),
        help="Format of weight matrices, stored, float, int8 or int4, and its settings, such as "
        '"int4 block_size=64"; help prints all there are.',
    ),
)
_checkpoint_options = grouped(
    Group.WEIGHTS,
    click.option(
        "--adapter",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder of a LoRA adapter of peft's, which is merged into the weights.",
    ),
    chat_template_option,
)
_output_options = grouped(
    Group.OUTPUT,
    click.option(
        "-o", "--output", type=OutputPath(replaces_bundle=True), help="Folder to write the bundle to."
    ),
    needing(
        NotBeside("dry_run"),
        click.option("--force", is_flag=True, help="Replace an existing bundle."),
        click.option(
            "--validate/--no-validate", default=True, help="Compare the bundle with transformers afterwards."
        ),
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be written and the memory it would need."),
    click.option(
        "-c",
        "--ctx-size",
        "context",
        type=click.IntRange(min=1),
        help="Maximum context of the bundle, in tokens.  [default: the model's; --dry-run: at most 8192]",
    ),
    json_option,
    verbose_option,
)


@click.command(cls=HelpfulCommand, first=_FIRST)
@version_option
@click.argument("checkpoint")
@_weight_options
@_checkpoint_options
@prefill_options
@_output_options
@kept_options
def main(
    checkpoint: str,
    output: Path | None,
    dtype: Any,
    weights: WeightSettings,
    adapter: Path | None,
    chat_template: Path | None,
    dry_run: bool,
    context: int | None,
    validate: bool,
    force: bool,
    as_json: bool,
    verbose: int,
    **flags: Any,
) -> None:
    """Turn CHECKPOINT, a Hugging Face folder, hub name or GGUF file, into a bundle of ONNX graphs and weights.

    The prefill flags become the bundle's defaults; they can be changed at every run.
    """
    start_logging(verbose)
    refused = _refusal(output) if dry_run and output else None
    if output is None and not dry_run:
        raise click.UsageError("give the folder to write to: -o BUNDLE")
    # It is stored in the manifest, and ONNX requires UTF-8.
    checkpoint = argument_text(checkpoint, "CHECKPOINT")
    output = Path("bundle") if output is None else Path(argument_text(str(output), "--output"))
    exporter, checkpoints = _import_exporter(validate and not dry_run)
    options = exporter.ExportOptions(
        checkpoint, output, dtype, chosen_prefill(Query(), flags) or Query(), force, *weights.choices()
    )
    if not dry_run:
        check_output(options.output, force)
    opened = checkpoints.open_checkpoint(
        checkpoint, context, download=True, adapter=adapter, chat_template=chat_template
    )
    if dry_run:
        from h2o_export.preview import preview_export

        _tell_preview(preview_export(opened, options, context), opened.config, refused, as_json)
        return
    from h2o_export.memory import warn_of_work

    warn_of_work(opened.plan, options, validate)
    steps = exporter.count_stages(opened, options, validate)
    with stages("checkpoint", steps, 28) as stage, staged_folder(options.output, force) as folder:
        manifest = exporter.write_bundle(opened, options, folder, stage)
        if validate:
            from h2o_export.validation.validate import validate as compare

            manifest = manifest.model_copy(update={"validation": compare(folder, opened, stage)})
            manifest.write(folder)
    if as_json:
        described = manifest.model_dump(include={"model", "checkpoint", "validation"})
        print_json({"bundle": str(options.output), **described})
    else:
        _show_result(options.output, manifest, opened.config)
    if manifest.validation:
        warn_of_loss(options.output, manifest.validation)
    if manifest.validation and not manifest.validation.passed:
        click.echo(f"error: {options.output}: {missed(manifest.validation, manifest.model)}", err=True)
        sys.exit(usage.Exit.TOLERANCE)


def _import_exporter(validate: bool) -> tuple[Any, Any]:
    """The exporter's modules. Packages for --validate are checked here too, before hours of work."""
    try:
        with uncollected():
            from h2o_export import checkpoints, exporter

            if validate:
                import transformers  # noqa: F401
    except ImportError as error:
        raise unimportable(error, needs_export("exporting", error)) from None
    if validate:
        import_onnxruntime()
    return exporter, checkpoints


def _refusal(output: Path) -> str | None:
    """Why an export would not begin to write there."""
    try:
        check_output(output, force=False)
    except OutputError as error:
        return usage.in_flags(error)
    return None


def _tell_preview(preview: ExportPreview, config: ModelConfig, refused: str | None, as_json: bool) -> None:
    if as_json:
        print_json(preview.to_json() | {"refused": refused})
        return
    model, size = preview.model, preview.footprint
    table = Table("graph", "inputs", "outputs", title="graphs")
    for name, graph in _distinct(preview.graphs):
        table.add_row(name, _interface(graph.inputs), _interface(graph.outputs))
    show(
        f"{model.family}: {model.layers} layers, hidden {model.hidden_size}, {model.query_heads} query and "
        f"{model.kv_heads} key/value heads of {model.head_size}, MLP {model.intermediate_size}, "
        f"vocabulary {model.vocab_size:,}{', tied' if model.tied else ''}; "
        f"{model.parameters / 1e6:,.1f} M parameters in {_weights(model)}",
        f"prefill: {preview.options.prefill}",
        *_longrope(config),
        table,
        f"on disk: {_mib(preview.disk_bytes)} of weights",
        f"at run time, context {preview.context:,}: weights {_mib(size.weights)}, cache {_mib(size.cache)}, "
        f"activations {_mib(size.activations)}, memory sets {_mib(size.memory)}, scratch {_mib(size.scratch)}; "
        f"in all about {_mib(size.total)}",
        "keys and values by --cache: "
        + ", ".join(f"{name} {_mib(nbytes)}" for name, nbytes in preview.cache_bytes.items()),
        _token(preview),
        *([escape(refused)] if refused else []),
        "dry run: nothing was written",
    )


def _longrope(config: ModelConfig) -> Iterator[str]:
    """The list of factors that rotates all texts of the bundle."""
    for rope in config.rotations:
        if rope.kind == "factors" and (limit := rope.original_context):
            if config.max_position_embeddings > limit:
                yield f"LongRoPE: long_factor, for contexts above {limit:,} tokens; -c {limit} takes short_factor"
            else:
                yield f"LongRoPE: short_factor, for contexts up to {limit:,} tokens; a longer one takes long_factor"


def _token(preview: ExportPreview) -> str:
    """What a token takes in the cache, in words."""
    taken, expanded = preview.model.token_bytes, preview.expanded_token_bytes
    less = f", {expanded / taken:.1f} times less than its keys and values" if expanded else ""
    return f"a token in the cache: {taken:,} bytes{less}"


def _weights(model: ModelSpec) -> str:
    """The weights' format, in words."""
    if model.weights is None or not model.weights.quantized:
        return model.dtype
    w = model.weights
    return f"{w.shares} (head {w.head}) with a scale every {w.block_size}, activations {model.dtype}"


def _distinct(graphs: Sequence[GraphSpec]) -> Iterator[tuple[str, GraphSpec]]:
    """Graphs with one name for each run of equal interfaces: all middle layers are one row."""
    for _, group in itertools.groupby(graphs, key=lambda graph: (graph.inputs, graph.outputs)):
        alike = list(group)
        name = alike[0].name if len(alike) == 1 else f"{alike[0].name} … {alike[-1].name}"
        yield name, alike[0]


def _interface(tensors: Sequence[TensorSpec]) -> str:
    return escape("\n".join(f"{t.name} {t.dtype}[{', '.join(map(str, t.shape))}]" for t in tensors))


def _show_result(output: Path, manifest: Manifest, config: ModelConfig) -> None:
    total = sum(file.bytes for file in manifest.files.values())
    errors: list[RenderableType] = [validation_table(manifest.validation)] if manifest.validation else []
    show(*_longrope(config), *errors, escape(f"wrote {output}: {len(manifest.graphs)} graphs, {_mib(total)}"))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


if __name__ == "__main__":
    main()
