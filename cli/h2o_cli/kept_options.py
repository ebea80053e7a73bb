"""Options of h2o-export for the exports that commands keep: they are listed and removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from h2o_cli.common import show
from h2o_cli.help import Group, grouped
from h2o_cli.kept_exports import ALL, kept_exports, remove


def _list(ctx: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    table = Table("name", "source", "options", "MiB", "last used", title="kept exports")
    for kept in kept_exports():
        used = datetime.fromtimestamp(kept.used).isoformat(" ", "minutes")
        table.add_row(
            kept.name, escape(kept.source), escape(kept.options), f"{kept.bytes / 2**20:,.1f}", used
        )
    show(table if table.row_count else "no exports are kept")
    ctx.exit()


def _remove(ctx: click.Context, option: click.Parameter, name: str | None) -> None:
    if name is not None and not ctx.resilient_parsing:
        remove(name)
        ctx.exit()


_AT_ONCE: dict[str, Any] = {"is_eager": True, "expose_value": False}
kept_options = grouped(
    Group.OUTPUT,
    click.option(
        "--list",
        is_flag=True,
        callback=_list,
        **_AT_ONCE,
        help="Show the exports that other commands keep, of checkpoints that were their BUNDLE, and exit.",
    ),
    click.option(
        "--remove",
        metavar="NAME",
        callback=_remove,
        **_AT_ONCE,
        help=f"Remove one of these, or {ALL}, and exit.",
    ),
)
