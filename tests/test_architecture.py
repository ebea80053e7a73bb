"""What docs/architecture.md describes: imports, and layer kinds and policies that keep to themselves."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from h2o_export.layers import LAYERS as EXPORTED
from h2o_runtime.layers import LAYERS
from h2o_runtime.policies.prefill import PREFILL

ROOT = Path(__file__).parents[1]
BELOW = {  # the packages that each may import
    "h2o_plugins": set[str](),
    "h2o_runtime": {"h2o_plugins"},
    "h2o_server": {"h2o_runtime"},
    "h2o_export": {"h2o_plugins", "h2o_runtime"},
    "h2o_cli": {"h2o_plugins", "h2o_runtime", "h2o_server", "h2o_export"},
}
PACKAGES = {name: ROOT / name.removeprefix("h2o_") / name for name in BELOW}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """What imports or compares, of a file that is parsed once."""
    every = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in every if isinstance(node, ast.Import | ast.ImportFrom | ast.Compare)]


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of ours that a file imports at any time, in functions and for the type checker too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named if named <= MODULES.keys() else {*named, node.module}  # or what a package hands on
    return frozenset(found & MODULES.keys())


def reached(name: str) -> set[str]:
    """Modules that a module imports at any time, with the packages that hold them and not the module itself."""
    found = set(imports(MODULES[name]))
    for other in tuple(found):
        while other := other.rpartition(".")[0]:
            found |= {other} & MODULES.keys()
    return {other for other in found if not f"{name}.".startswith(f"{other}.")}


def part(name: str) -> str:
    """The folder or module of its package that a module belongs to; the package itself for what it hands on.

    The server is one part: what its folders tell apart is topics, not layers.
    """
    return ".".join(name.split(".")[: 1 if name.startswith("h2o_server") else 2])


def without_circle(graph: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join([*above[above.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*above, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_modules_import_each_other_in_a_circle() -> None:
    without_circle({name: reached(name) for name in MODULES})


def test_no_parts_of_a_package_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {part(name): set() for name in MODULES}
    for name, path in MODULES.items():
        graph[part(name)] |= {part(other) for other in imports(path)} - {part(name), *PACKAGES}
    without_circle(graph)


def test_packages_import_downwards() -> None:
    for name, path in MODULES.items():
        package = name.partition(".")[0]
        for other in imports(path):
            assert other.partition(".")[0] in {package, *BELOW[package]}, f"{name} imports {other}"


def lines_of_the_runtime() -> dict[str, int]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    found = {name: int(line) for line, names in rows for name in re.findall(r"`(\S+)`", names)}
    return {name if name == "h2o_runtime" else f"h2o_runtime.{name}": line for name, line in found.items()}


def test_parts_of_the_runtime_import_from_lines_above_their_own() -> None:
    lines = lines_of_the_runtime()
    for name, path in MODULES.items():
        for other in imports(path):
            if name.startswith("h2o_runtime") and part(other) != part(name) and part(other) in lines:
                assert lines[part(other)] < lines[part(name)], f"{name} imports {other}"


def test_every_part_of_the_runtime_has_a_line() -> None:
    assert lines_of_the_runtime().keys() == {part(name) for name in MODULES if name.startswith("h2o_runtime")}


# --- Layer kinds and policies keep to themselves ----------------------------------------------------------


def test_nobody_else_knows_a_layer_kind() -> None:
    """But families, and checkpoints in formats of their own, name the kinds of a model's layers by constants."""
    kinds = {kind.__module__ for kind in LAYERS} | {type(kind).__module__ for kind in EXPORTED.values()}
    for name, path in MODULES.items():
        if ".layers" not in name:
            assert not imports(path) & kinds, name
            assert not compared(path) & set(LAYERS.names), name


NAMES = set(PREFILL.names)


@cache
def compared(path: Path) -> frozenset[str]:
    """Strings that a file compares with."""
    compares = (node for node in nodes(path) if isinstance(node, ast.Compare))
    sides = (side for node in compares for side in (node.left, *node.comparators))
    leaves = (leaf for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant))
    return frozenset(leaf.value for leaf in leaves if isinstance(leaf.value, str))


def test_nobody_else_asks_for_a_policys_name() -> None:
    for name, path in MODULES.items():
        if ".policies" not in name:
            assert not compared(path) & NAMES, name


def test_the_page_asks_for_no_policys_name() -> None:
    for path in (ROOT / "server" / "h2o_server" / "static").iterdir():
        if path.suffix in (".js", ".html"):
            text = path.read_text(encoding="utf-8")
            for name in NAMES:
                assert not re.search(rf"[=!]==? *[\"']{name}[\"']", text), f"{path.name} compares with {name}"
