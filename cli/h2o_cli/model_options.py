"""Flags of every command that loads a bundle: backend, device, and context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar

import click

from h2o_cli.common import threads_option
from h2o_cli.effects import Where, given_settings, needing
from h2o_cli.help import Command, Group, grouped
from h2o_cli.output_path import OutputPath
from h2o_cli.policy_options import PolicyValue
from h2o_cli.settings_text import SettingsText
from h2o_runtime.backends.select import refusal_on_gpu, resolve_device
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import CACHES, Contiguous
from h2o_runtime.components.options import Configuration, option
from h2o_runtime.layers.live import layer_options
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.names import (
    BACKENDS,
    DEVICES,
    SPECULATIONS,
    DenseChoice,
    DensePrecisionChoice,
    PrecisionChoice,
    ProviderChoice,
)
from h2o_runtime.policies.decode import DECODE, FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy


@dataclass(frozen=True)
class AttentionCompute(Configuration):
    """How attention is computed."""

    title: ClassVar[str] = "how attention and products are computed"

    attention: ProviderChoice = option(
        "auto",
        "native kernels, or the ONNX function bodies, which are slow; auto: native if they are built",
    )
    attention_precision: PrecisionChoice = option(
        "auto", "of attention in prefill; auto: this CPU's fastest for integer weights, else float32"
    )


@dataclass(frozen=True)
class Compute(AttentionCompute):
    """How attention and the products of dense graphs are computed."""

    dense_form: DenseChoice = option(
        "auto",
        "how ONNX Runtime multiplies by weights on a CPU; auto: for integer weights the best that h2o-bench dense "
        "found, for float weights native, if this CPU is fast at it",
    )
    dense_precision: DensePrecisionChoice = option(
        "auto",
        "of products on a CPU: bfloat16 is faster with float weights, and may be with integer ones where there is "
        "AMX; it rounds weights and activations. auto: bfloat16 for float16 weights, if this CPU has it, and for "
        "integer ones where h2o-bench dense found it best",
    )


def _with_layers() -> type[Compute]:
    """`Compute` with the settings of all kinds of layers: loading knows which a model has."""
    layers = [
        (field.name, field.type, option(field.default, field.meaning, label=field.label, least=field.least))
        for field in layer_options()
    ]
    return make_dataclass("ModelCompute", layers, bases=(Compute,), frozen=True)


def compute_option(kind: type[AttentionCompute]) -> Callable[[Command], Command]:
    """`compute`, a value of `kind`."""
    return click.option(
        "--compute",
        type=SettingsText(kind),
        default=kind(),
        help='How attention and products are computed, such as "attention_precision=float32"; help '
        "prints all settings.",
    )


execution_options = grouped(
    Group.MACHINE,
    click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default=BACKENDS[0],
        show_default=True,
        help="Executes the dense graphs; the TensorRT backends need engines from h2o-build.",
    ),
    click.option(
        "--device",
        type=click.Choice(DEVICES),
        default="auto",
        show_default=True,
        help="auto: an NVIDIA GPU if the backend can use it.",
    ),
)
DRAFTING = SPECULATIONS[:-1]  # all but off
speculate_option = grouped(
    Group.DECODE,
    needing(
        Where("decode", lambda decoding: decoding.full_attention_only),
        needing(
            Where("cache", lambda cache: cache.most_rows is None),
            click.option(
                "--speculate",
                type=click.Choice(SPECULATIONS),
                default=SPECULATIONS[0],
                show_default=True,
                help="Drafts tokens and verifies several in one step; the answer is the same. lookup: those that "
                "followed the same tokens earlier. mtp: by the model's own draft layer. auto: by the better of "
                "both at the time. All but off also draft what a grammar forces.",
            ),
            of=DRAFTING,
        ),
        of=DRAFTING,
    ),
)
_PACKED = click.option(
    "--packed-weights",
    metavar="DIR",
    type=OutputPath(file_okay=False),
    help="Folder for weights in the layout that a CPU reads: later starts are faster, and processes share the "
    "memory.",
)
_VERIFY = click.option(
    "--verify",
    is_flag=True,
    help="First compare every file of the bundle with its hash.",
)
_CONTEXT = click.option(
    "-c",
    "--ctx-size",
    "context",
    type=click.IntRange(min=1, max=MAX_CONTEXT),
    help="Maximum tokens of prompt and answer.  [default: the model's own limit, at most 8192]",
)


decode_options = grouped(
    Group.DECODE,
    click.option(
        "--decode",
        type=PolicyValue(DECODE, "--decode"),
        default=FullDecode(),
        show_default=True,
        help='What a generated token sees: a policy and its settings, such as "quest budget=2048". help prints all '
        "there are.",
    ),
)
chat_template_option = click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Jinja file, in place of the model's own chat template.",
)
_CACHE = click.option(
    "--cache",
    type=PolicyValue(CACHES, "--cache"),
    default=Contiguous(),
    show_default=True,
    help='How keys and values are stored: a cache and its settings, such as "paged rows=int8". help prints all '
    "there are.",
)


def model_options(command: Command) -> Command:
    """The flags that `load_arguments` turns into arguments of `Generator.load`."""
    machine = (_PACKED, _VERIFY, compute_option(_with_layers()), threads_option, execution_options)
    command = grouped(Group.MACHINE, *machine)(command)
    return grouped(Group.CACHE, _CONTEXT, _CACHE)(decode_options(command))


def load_arguments(flags: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Generator.load` by name, from the flags of `model_options`; takes them out of `flags`."""
    names = (
        "backend",
        "device",
        "context",
        "threads",
        "packed_weights",
        "verify",
        "cache",
    )
    compute = asdict(flags.pop("compute"))
    every = {option.name: compute.pop(option.name) for option in layer_options()}
    named = given_settings(click.get_current_context(), "compute")
    layers = {name: every[name] for name in named if name in every}
    arguments = {name: flags.pop(name) for name in names} | compute
    return arguments | {"layers": layers, "decoding": flags.pop("decode")}


def on_device(arguments: dict[str, Any], manifest: Manifest, policy: PrefillPolicy[Any]) -> dict[str, Any]:
    """Arguments of `Generator.load` with a known device: "auto" is one that runs the bundle under the policy."""
    refusal = refusal_on_gpu(manifest.model, policy, arguments["decoding"])
    return arguments | {"device": resolve_device(arguments["device"], arguments["backend"], refusal)}
