"""What docs/architecture.md describes: imports, and policies that keep to themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from h2o_runtime.policies.prefill import PREFILL

ROOT = Path(__file__).parents[1]
PACKAGES = {  # each imports only from those before it
    "h2o_plugins": ROOT / "plugins" / "h2o_plugins",
    "h2o_runtime": ROOT / "runtime" / "h2o_runtime",
    "h2o_export": ROOT / "export" / "h2o_export",
    "h2o_cli": ROOT / "cli" / "h2o_cli",
}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path, everywhere: bool = False) -> set[str]:
    """Modules of ours that a file imports when it is itself imported, or at any time.

    Of the runtime's modules those for the type checker alone count too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = (
        ast.walk(tree) if everywhere else at_import(tree, types=path.is_relative_to(PACKAGES["h2o_runtime"]))
    )
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (
                named if named <= MODULES.keys() else named | {node.module}
            )  # else names of the package itself
    return {name for name in found if name in MODULES}


def at_import(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Nodes that run on import: not those of functions, nor, but for `types`, those for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from at_import(node, types)


def reached(name: str) -> set[str]:
    """Modules that a module imports at any time, with the packages that hold them and not the module itself."""
    found = imports(MODULES[name], everywhere=True)
    for other in tuple(found):
        while other := other.rpartition(".")[0]:
            found |= {other} & MODULES.keys()
    return {other for other in found if not f"{name}.".startswith(f"{other}.")}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """An import inside a function, or for the type checker alone, ties modules like any other."""
    graph = {name: reached(name) for name in MODULES}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_packages_import_downwards() -> None:
    order = list(PACKAGES)
    for name, path in MODULES.items():
        rank = order.index(name.partition(".")[0])
        for other in imports(path, everywhere=True):
            assert order.index(other.partition(".")[0]) <= rank, f"{name} imports {other}"


def lines_of_the_runtime() -> dict[str, int]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    found = {name: int(line) for line, names in rows for name in re.findall(r"`(\S+)`", names)}
    return {name if name == "h2o_runtime" else f"h2o_runtime.{name}": line for name, line in found.items()}


def test_modules_of_the_runtime_import_from_their_own_line_or_above() -> None:
    lines = lines_of_the_runtime()

    def line(name: str) -> int:
        while name not in lines:
            name, _, last = name.rpartition(".")
            assert name, f"docs/architecture.md has no line for {last}"
        return lines[name]

    for name, path in MODULES.items():
        if name.startswith("h2o_runtime."):
            for other in imports(path):
                if other.startswith("h2o_runtime."):
                    assert line(other) <= line(name), f"{name} imports {other}"


# --- Policies keep to themselves --------------------------------------------------------------------------

NAMES = set(PREFILL.names)
OUTSIDE = {name: path for name, path in MODULES.items() if ".policies" not in name}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nobody_else_asks_for_a_policys_name(name: str) -> None:
    for node in ast.walk(ast.parse(OUTSIDE[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            compared = {
                leaf.value
                for side in (node.left, *node.comparators)
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
            assert not compared & NAMES, f"{name}:{node.lineno} compares with a policy's name"


def test_the_page_asks_for_no_policys_name() -> None:
    for path in (ROOT / "runtime" / "h2o_runtime" / "server" / "static").iterdir():
        if path.suffix in (".js", ".html"):
            text = path.read_text(encoding="utf-8")
            for name in NAMES:
                assert not re.search(rf"[=!]==? *[\"']{name}[\"']", text), f"{path.name} compares with {name}"
