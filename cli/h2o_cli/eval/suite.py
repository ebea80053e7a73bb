"""Fixed texts that every installation has: Python's manual and sources, and numpy's documentation.

One half is for choosing settings, the other for reports. Other versions of Python and numpy have other texts;
reports include hashes of their tokens.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from h2o_runtime.errors import InputError

SuiteName: TypeAlias = Literal["small", "standard", "long"]
Half: TypeAlias = Literal["report", "tune"]
PYTHON = "python"  # the package of the standard library's files


@dataclass(frozen=True)
class Source:
    """A text. path: of a package's file, or of a folder of modules; topics: of Python's manual instead.

    whole  code as it stands; otherwise its docstrings alone
    """

    name: str
    package: str = PYTHON
    path: str = ""
    topics: tuple[str, ...] = ()
    whole: bool = False

    def text(self) -> str:
        """Raises InputError if this installation lacks the file."""
        if self.topics:
            from pydoc_data.topics import topics

            return "\n\n".join(str(topics[name]).strip() for name in self.topics)
        place = self._place()
        try:
            if self.whole or place.suffix not in ("", ".py"):
                return place.read_text(encoding="utf-8")
            files = [place] if place.is_file() else sorted(place.rglob("*.py"))
            return "\n\n".join(text for file in files for text in docstrings(file))
        except OSError as error:
            raise InputError(
                f"the text {self.name} cannot be read ({place}: {error.strerror}): choose texts by --text"
            ) from error

    def _place(self) -> Path:
        if self.package == PYTHON:
            return Path(sysconfig.get_path("stdlib"), self.path)
        return Path(str(distribution(self.package).locate_file(self.path)))


def docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a module and everything in it, in the order of the file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, kinds)
    ]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text and len(text) > 100:
            title = "" if isinstance(node, ast.Module) else f"{node.name}\n\n"
            yield title + text


def _code(path: str) -> Source:
    return Source(Path(path).stem.strip("_") + "-code", path=path, whole=True)


def _numpy(name: str, path: str) -> Source:
    return Source(f"numpy-{name}", "numpy", f"numpy/{path}")


# Prose and code in turn, so that a suite of fewer texts has both. Each has at least 17,000 tokens.
TEXTS: dict[Half, tuple[Source, ...]] = {
    "report": (
        Source("manual-objects", topics=("specialnames", "debugger", "execmodel", "import")),
        _code("argparse.py"),
        _numpy("masked", "ma/core.py"),
        _code("tarfile.py"),
        _numpy("linalg", "linalg/_linalg.py"),
        _code("inspect.py"),
        _code("doctest.py"),
        _code("unittest/mock.py"),
        Source("manual-types", topics=("types", "typesseq", "strings", "comparisons", "assignment", "try")),
        _code("urllib/request.py"),
        _numpy("polynomial", "polynomial"),
        _code("subprocess.py"),
        Source("decimal-docstrings", path="_pydecimal.py"),
        _code("logging/__init__.py"),
        Source("email-docstrings", path="email"),
        _code("http/cookiejar.py"),
        _numpy("core", "_core"),
        _code("ipaddress.py"),
        Source("numpy-newdocs", "numpy", "numpy/_core/_add_newdocs.py", whole=True),
        _code("pickletools.py"),
        _code("email/_header_value_parser.py"),
        _code("_pydecimal.py"),
        _code("enum.py"),
    ),
    "tune": (
        Source("manual-statements", topics=("compound", "formatstrings", "typesmapping", "string-methods")),
        _code("typing.py"),
        _numpy("functions", "lib/_function_base_impl.py"),
        _code("difflib.py"),
        _numpy("fromnumeric", "_core/fromnumeric.py"),
        _code("turtle.py"),
        _code("pydoc.py"),
        _code("_pyio.py"),
    ),
}


class Suite(NamedTuple):
    """How much is read: `length` tokens of the first `texts` texts of a half that have so many."""

    length: int
    texts: int


SIZES: dict[SuiteName, Suite] = {
    "small": Suite(4096, 4),
    "standard": Suite(8192, 8),
    "long": Suite(16384, 8),
}
