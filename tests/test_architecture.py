"""What docs/architecture.md describes: imports, policies that keep to themselves, one word for one thing."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from h2o_runtime.components.options import options_of
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


def test_no_two_modules_import_each_other() -> None:
    graph = {name: imports(path) - {name} for name, path in MODULES.items()}
    # A package's own file is imported with every module in it; it may name those, and they may not need it back.
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
SHARED = {"batch_size", "score", "window"}  # words of others too: layers have windows
FIELDS = {one.name for policy in PREFILL.kinds for one in options_of(policy)} - SHARED
OUTSIDE = {name: path for name, path in MODULES.items() if ".policies" not in name}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nobody_else_asks_for_a_policys_name_or_field(name: str) -> None:
    for node in ast.walk(ast.parse(OUTSIDE[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            compared = {
                leaf.value
                for side in (node.left, *node.comparators)
                for leaf in ast.walk(side)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            }
            assert not compared & NAMES, f"{name}:{node.lineno} compares with a policy's name"
        if isinstance(node, ast.Attribute):
            assert node.attr not in FIELDS, f"{name}:{node.lineno} reads {node.attr}"


def test_the_page_asks_for_no_policys_name_or_field() -> None:
    for path in (ROOT / "runtime" / "h2o_runtime" / "server" / "static").iterdir():
        if path.suffix in (".js", ".html"):
            text = path.read_text(encoding="utf-8")
            for field in FIELDS - {"local"}:
                assert f".{field}" not in text, f"{path.name} reads {field}"
            for name in NAMES:
                assert not re.search(rf"[=!]==? *[\"']{name}[\"']", text), f"{path.name} compares with {name}"


# --- One word for one thing -------------------------------------------------------------------------------

# Each of these stood for several things: the glossary in docs/architecture.md, and the field, have words for them.
VAGUE = {word + end for word in ("plain", "form", "part", "piece") for end in ("", "s")} | {"kept", "held"}
PHRASES = {
    ("dense", "form"),  # how dense graphs multiply: the flag --dense-form, and the glossary's word
    ("content", "part"),  # OpenAI's word for an element of a message's content
    ("prompt", "piece"),  # what a server reads of a prompt at once: the flag --piece, and the glossary's word
}
FIELDS_OF_JSON = {
    ("h2o_runtime.server.schemas.text", "with_pieces"),  # llama.cpp's parameter of /tokenize
    ("h2o_runtime.server.schemas.text", "piece"),  # llama.cpp's member of its answer
    ("h2o_runtime.ort.choice", "forms"),  # in the file that h2o-bench dense writes
}


def words(name: str) -> list[str]:
    """Lower-case words of an identifier, which underscores and capitals divide."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def is_vague(name: str) -> bool:
    found = words(name)
    return any(
        word in VAGUE and (before, word.removesuffix("s")) not in PHRASES
        for before, word in itertools.pairwise(["", *found])
    )


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, arguments, variables, attributes, and what imports are renamed to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name


def test_names_have_no_vague_word() -> None:
    ours = {name: path for name, path in MODULES.items() if not name.startswith("h2o_plugins")}
    vague = {(name, name) for name in ours if is_vague(name.rpartition(".")[2])}
    for name, path in ours.items():
        defined = defined_names(ast.parse(path.read_text(encoding="utf-8")))
        vague |= {(name, one) for one in defined if is_vague(one)}
    assert not vague - FIELDS_OF_JSON, "choose a word that says what it is"
    assert not FIELDS_OF_JSON - vague, "an exception that is needed no more"


@pytest.mark.parametrize(
    "name", ["kept", "_held_rows", "TextPiece", "isPlain", "DENSE_PARTS", "form_dense", "forms"]
)
def test_vague_words_are_found_in_any_case(name: str) -> None:
    assert is_vague(name)


@pytest.mark.parametrize(
    "name", ["dense_form", "DENSE_FORMS", "TextContentPart", "format", "partial", "platform"]
)
def test_words_that_only_contain_one_are_not(name: str) -> None:
    assert not is_vague(name)
