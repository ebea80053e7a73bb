"""What an extra of pyproject.toml installs, one requirement a line, for pip.

    python -m tools.requirements cpu export

The kernels compile meanwhile: `pip install '.[cpu,export]'` would do one after the other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10 has no parser of its own, pip brings one
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
OWN_EXTRAS = re.compile(r"h2o-edge\[([\w,-]+)\](.*)")


def requirements(project: dict[str, Any], extras: list[str]) -> Iterator[str]:
    """The project's own requirements and those of the extras, which may name each other."""
    yield from project["dependencies"]
    for extra in extras:
        yield from _of(project["optional-dependencies"], extra)


def _of(declared: dict[str, list[str]], extra: str) -> Iterator[str]:
    for requirement in declared[extra]:
        own = OWN_EXTRAS.fullmatch(requirement)
        if own is None:
            yield requirement
            continue
        for name in own[1].split(","):
            yield from (f"{inner}{own[2]}" for inner in _of(declared, name))


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print(*dict.fromkeys(requirements(project, sys.argv[1:])), sep="\n")


if __name__ == "__main__":
    main()
