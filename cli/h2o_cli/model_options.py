"""Flags of every command that loads a bundle: backend, device, and context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from h2o_cli.common import setting_name, threads_option
from h2o_cli.effects import Beside, NotBeside, needing
from h2o_cli.help import Command, Group, grouped
from h2o_cli.prefill_options import click_option, given_settings, registry_options
from h2o_runtime.caches import CACHES
from h2o_runtime.components.options import Option
from h2o_runtime.components.registry import Registry
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
from h2o_runtime.policies.decode import DECODE, DecodePolicy

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
_CACHE_TOKENS = setting_name("cache_tokens")
_SPARSE = tuple(kind.name for kind in DECODE if not kind.full_attention_only)
speculate_option = grouped(
    Group.DECODE,
    needing(
        NotBeside(setting_name("decode"), _SPARSE),
        needing(
            NotBeside(_CACHE_TOKENS),
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


_OF_EVICTION = ("cache_recent", "keep")  # settings of a cache that evicts; 0 of --cache-tokens is none
_CHOICES: tuple[tuple[Registry[Any], Group], ...] = ((DECODE, Group.DECODE), (CACHES, Group.CACHE))


def _has_choice(registry: Registry[Any]) -> bool:
    return len(registry.names) > 1 or len(registry.options) > 1


def execution_options(command: Command) -> Command:
    """`backend`, `device`, `attention` and `attention_precision`."""
    return grouped(Group.MACHINE, *_EXECUTION)(command)


def model_options(command: Command) -> Command:
    """The flags that `load_arguments` turns into arguments of `Generator.load`."""
    for registry, group in reversed(_CHOICES):
        if _has_choice(registry):
            flags = zip(registry.options, registry_options(registry, defaults=True), strict=True)
            command = grouped(group, *(_declared(one, flag) for one, flag in flags))(command)
    layers = map(click_option, layer_options())
    machine = (
        _PACKED,
        _VERIFY,
        *layers,
        dense_form_option,
        dense_precision_option,
        threads_option,
        execution_options,
    )
    return grouped(Group.CACHE, _CONTEXT)(grouped(Group.MACHINE, *machine)(command))


def _declared(one: Option, flag: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The flag of an option, with its condition."""
    return needing(Beside(_CACHE_TOKENS), flag) if one.name in _OF_EVICTION else flag


def decode_options(command: Command) -> Command:
    """The flags that `decode_policy` turns into a policy."""
    return grouped(Group.DECODE, *registry_options(DECODE, defaults=True))(command)


def decode_policy(flags: dict[str, Any]) -> DecodePolicy[Any]:
    """Takes its own settings out of `flags`. Raises ConfigError for some that contradict."""
    return DECODE.chosen(given_settings(DECODE.options, flags))


def load_arguments(flags: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Generator.load` by name, from the flags of `model_options`, with policies in place of
    names.

    Takes its own arguments out of `flags`. Raises ConfigError if settings contradict each other.
    """
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
    )
    flags[_CACHE_TOKENS] = flags[_CACHE_TOKENS] or None  # 0 keeps all, as if it was not given
    decoding, cache = (registry.chosen(given_settings(registry.options, flags)) for registry, _ in _CHOICES)
    layers = given_settings(layer_options(), flags)
    chosen = {"decoding": decoding, "cache": cache, "layers": layers}
    return {name: flags.pop(name) for name in names} | chosen
