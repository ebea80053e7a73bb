"""Options that take a policy or a cache as text: --prefill "h2o score=window heavy=192"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from h2o_cli.help import Command, Group, grouped
from h2o_cli.settings_text import HELP, setting_lines
from h2o_runtime.components.options import options_of
from h2o_runtime.components.registry import Registry
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy


class PolicyText(click.ParamType[str]):
    """A text that a registry reads; "help", and "help NAME", print what there is."""

    name = "POLICY"

    def __init__(self, registry: Registry[Any], flag: str) -> None:
        self._registry, self._flag = registry, flag

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text.split()[:1] == [HELP] and ctx is not None:
            try:
                click.echo(described(self._registry, self._flag, text.split()[1:]))
            except ConfigError as error:
                self.fail(str(error), param, ctx)
            ctx.exit()
        return text


class PolicyValue(PolicyText):
    """The value itself, of a registry whose values change no other."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = super().convert(value, param, ctx)
        try:
            return self._registry.read(text)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def described(registry: Registry[Any], flag: str, names: list[str]) -> str:
    """What --help cannot show: every policy, its settings and their defaults; of `names` only, if there are any.

    Raises ConfigError for a name that is none.
    """
    wanted = [registry.presets.get(name) or registry[name] for name in names]
    kinds = [kind for kind in registry.kinds if not wanted or issubclass(kind, tuple(wanted))]
    return "\n".join(line for kind in kinds for line in _of_kind(registry, flag, kind))


def _of_kind(registry: Registry[Any], flag: str, kind: type[Any]) -> list[str]:
    options = options_of(kind)
    fixed = [f" {option.name}={option.default}" for option in options if option.fixed]
    title = ": ".join(filter(None, (kind.title, getattr(kind, "score_title", ""))))
    lines = [f'{flag} "{kind.name}{"".join(fixed)}"   {title}']
    lines += setting_lines(option for option in options if not option.fixed)
    for preset, settings in getattr(kind, "presets", {}).items():
        lines.append(f"  {flag} {preset} is {registry.read(preset)}" if settings else "")
    return lines


# The method's own names for what most people change.
_SHORT: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("batch_size", ("-b", "--batch-size"), "Short for the setting batch_size of --prefill."),
    ("chunk_size", ("-ub", "--chunk-size"), "Short for chunk_size, with --prefill h2o."),
    ("local", ("--h2o-local",), "Short for local, with --prefill h2o."),
    ("heavy", ("--h2o-heavy",), "Short for heavy, with --prefill h2o."),
)


def prefill_options(command: Command) -> Command:
    """`--prefill` and its four short forms; `chosen_prefill` reads them."""
    short = [click.option(*flags, f"short_{name}", type=int, help=about) for name, flags, about in _SHORT]
    text = click.option(
        "--prefill",
        type=PolicyText(PREFILL, "--prefill"),
        help='How a prompt is read: a policy and its settings, such as "h2o heavy=192", full, fast or guarded; '
        "settings alone change the default. help prints all there are.",
    )
    return grouped(Group.PREFILL, text, *short)(command)


def chosen_prefill(default: PrefillPolicy[Any], flags: dict[str, Any]) -> PrefillPolicy[Any] | None:
    """The policy that the flags ask for, by changing `default` (a bundle's, or the built-in one); None if they ask
    for none.

    Takes its own arguments out of `flags`. Raises ConfigError.
    """
    text = flags.pop("prefill")
    short = {name: value for name, *_ in _SHORT if (value := flags.pop(f"short_{name}")) is not None}
    given = {} if text is None else PREFILL.settings_in(text, default)
    for name, names, _ in _SHORT:
        if name in short and name in given:
            raise ConfigError(f"{name} is given twice: by --prefill and by {names[-1]}", field=name)
    return PREFILL.make(given | short, default) if text is not None or short else None


def policies_beside(
    texts: Sequence[str],
    configured: PrefillPolicy[Any],
    alike: Callable[[PrefillPolicy[Any], PrefillPolicy[Any]], bool],
) -> list[PrefillPolicy[Any]]:
    """Those of --beside, which may change `configured`.

    Raises ConfigError for one that is measured without it: full attention, and what is `alike` another one.
    """
    found: list[PrefillPolicy[Any]] = []
    for text in texts:
        policy = PREFILL.read(text, configured)
        if policy.exact or any(alike(policy, known) for known in (configured, *found)):
            raise ConfigError(
                f"beside {text!r} has no effect, because it is measured already: leave it out", field="beside"
            )
        found.append(policy)
    return found
