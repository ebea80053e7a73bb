"""Flags of every command that loads a bundle: backend, device, and context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from h2o_cli.common import threads_option
from h2o_cli.effects import Where, needing
from h2o_cli.help import Command, Group, grouped
from h2o_cli.policy_options import PolicyValue
from h2o_runtime.caches import CACHES, Contiguous
from h2o_runtime.errors import ConfigError
from h2o_runtime.layers.model import layer_options
from h2o_runtime.limits import MAX_CONTEXT
from h2o_runtime.names import (
    BACKENDS,
    DENSE_FORMS,
    DENSE_PRECISIONS,
    DEVICES,
    PRECISIONS,
    PROVIDERS,
    SPECULATIONS,
)
from h2o_runtime.policies.decode import DECODE, FullDecode


def _layer_settings(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any]:
    """Settings by name, parsed but not checked: loading knows the model's layers."""
    known, found = {one.name: one for one in layer_options()}, {}
    for word in (text or "").split():
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise click.BadParameter(
                f"{word!r} is no setting: write one of {', '.join(known)}, =, and a value"
            )
        try:
            found[name] = known[name].parse(value)
            known[name].check(found[name])
        except ConfigError as error:
            raise click.BadParameter(str(error)) from None
    return found


_EXECUTION = (
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
    click.option(
        "--attention",
        type=click.Choice(PROVIDERS),
        default="auto",
        show_default=True,
        help="Executes attention: native kernels, or the ONNX function bodies, which are slow. auto: native if "
        "they are built.",
    ),
    click.option(
        "--attention-precision",
        type=click.Choice(PRECISIONS),
        default="auto",
        show_default=True,
        help="Precision of attention in prefill. auto: this CPU's fastest for integer weights, else float32.",
    ),
)
dense_precision_option = click.option(
    "--dense-precision",
    type=click.Choice(DENSE_PRECISIONS),
    default=DENSE_PRECISIONS[0],
    show_default=True,
    help="Precision of products with float weights on a CPU: bfloat16 is faster, and rounds weights and "
    "activations. auto: bfloat16 for float16 weights, if this CPU has it.",
)
dense_form_option = click.option(
    "--dense-form",
    type=click.Choice(("auto", *DENSE_FORMS)),
    default="auto",
    show_default=True,
    help="How ONNX Runtime multiplies by weights on a CPU. auto: for integer weights the best form that "
    "h2o-bench dense found; for float weights native, if this CPU is fast at it.",
)
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
                help="lookup drafts tokens that followed the same tokens earlier, or that a grammar forces, and "
                "verifies several in one step. The answer is the same; quotes and JSON are faster.",
            ),
            of=("lookup",),
        ),
        of=("lookup",),
    ),
)
_PACKED = click.option(
    "--packed-weights",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
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


_DECODE = click.option(
    "--decode",
    type=PolicyValue(DECODE, "--decode"),
    default=FullDecode(),
    show_default=True,
    help='What a generated token sees: a policy and its settings, such as "quest budget=2048". help prints all '
    "there are.",
)
_CACHE = click.option(
    "--cache",
    type=PolicyValue(CACHES, "--cache"),
    default=Contiguous(),
    show_default=True,
    help='How keys and values are stored: a cache and its settings, such as "paged rows=int8". help prints all '
    "there are.",
)
_LAYERS = click.option(
    "--layers",
    metavar="SETTING=VALUE",
    callback=_layer_settings,
    help="Settings of the model's kinds of layers: "
    + "; ".join(f"{one.name}={'|'.join(one.choices or ())}" for one in layer_options())
    + ".",
)


def execution_options(command: Command) -> Command:
    """`backend`, `device`, `attention` and `attention_precision`."""
    return grouped(Group.MACHINE, *_EXECUTION)(command)


def model_options(command: Command) -> Command:
    """The flags that `load_arguments` turns into arguments of `Generator.load`."""
    machine = (
        _PACKED,
        _VERIFY,
        _LAYERS,
        dense_form_option,
        dense_precision_option,
        threads_option,
        execution_options,
    )
    command = grouped(Group.MACHINE, *machine)(command)
    return grouped(Group.CACHE, _CONTEXT, _CACHE)(decode_options(command))


def decode_options(command: Command) -> Command:
    """`decode`, a policy."""
    return grouped(Group.DECODE, _DECODE)(command)


def load_arguments(flags: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Generator.load` by name, from the flags of `model_options`; takes them out of `flags`."""
    names = (
        "backend",
        "device",
        "attention",
        "attention_precision",
        "dense_precision",
        "context",
        "threads",
        "dense_form",
        "packed_weights",
        "verify",
        "cache",
        "layers",
    )
    return {name: flags.pop(name) for name in names} | {"decoding": flags.pop("decode")}
