"""The test modules of what changed, one a line: what `make check` runs.

    python -m tools.changed_tests [BASE]    # changes since the commit BASE; default: the remote's main, else HEAD

A test module belongs to a change if it changed itself or imports a changed module. C++ belongs to the tests of the
native modules.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/test_architecture.py", "tests/test_docs.py")
NATIVE = ("tests/plugins/test_native.py", "tests/plugins/test_native_selection.py")
CPP = {".cpp", ".h", ".cu", ".cuh"}


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else default_base()
    print("\n".join(sorted({*ALWAYS, *belonging(changed_since(base))})))


def default_base() -> str:
    known = _git("rev-parse", "--verify", "--quiet", "origin/main")
    return known[0] if known else "HEAD"


def changed_since(base: str) -> list[Path]:
    """Files that differ from `base`, and new ones; relative to the repository."""
    names = [*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")]
    return [Path(name) for name in names]


def belonging(changed: list[Path]) -> Iterator[str]:
    modules = {module_of(path) for path in changed if path.suffix == ".py"}
    if any(path.suffix in CPP for path in changed):
        yield from NATIVE
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        name = test.relative_to(ROOT)
        if name in changed or modules & imported(test):
            yield str(name)


def module_of(path: Path) -> str:
    """runtime/h2o_runtime/kv.py → h2o_runtime.kv; tests/users.py → tests.users"""
    parts = path.with_suffix("").parts
    inside = parts[1:] if len(parts) > 1 and parts[1].startswith("h2o_") else parts
    return ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def imported(path: Path) -> set[str]:
    """Modules that a file names in its imports, those in functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


if __name__ == "__main__":
    main()
