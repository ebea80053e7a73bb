"""The type of options that name a place to write to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from h2o_runtime.files.outputs import check_outside_bundles


class OutputPath(click.Path):
    """A path outside bundles. Raises OutputError for one that is inside a bundle, before any work."""

    def __init__(self, *, replaces_bundle: bool = False, **options: Any) -> None:
        """replaces_bundle: it may be a bundle, which is replaced as a whole."""
        super().__init__(path_type=Path, **options)
        self._replaces_bundle = replaces_bundle

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        check_outside_bundles(path, self._replaces_bundle)
        return path
