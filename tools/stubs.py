"""Type stubs of the native modules, from nanobind's own generator: make stubs

They are committed, because a type checker reads h2o_plugins from its source folder, even where nothing is
built. A test compares them with the modules. What the functions do is said once: in the modules themselves.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests import emulation

from h2o_plugins import load_cpu_kernels

STUBS = Path(__file__).resolve().parents[1] / "plugins" / "h2o_plugins"
MODULES = ("_cpu", "_cuda")
# The module's contents, if they differ under the emulation.
PATTERNS = """\
^_cuda\\.MEMORY$:
    MEMORY: str  # where the addresses point, in ONNX Runtime's words: "cuda"; "cpu" in the emulation on a CPU
"""


def header() -> str:
    """The first line of a stub; the generator's own line differs between versions."""
    return f"# By nanobind {version('nanobind')}: make stubs\n"


def generate(module: str) -> str:
    """The stub of h2o_plugins' module `name`, in the repository's format."""
    file = load_cpu_kernels().__file__ if module == "_cpu" else str(emulation.build_module())
    assert file is not None
    with tempfile.TemporaryDirectory() as folder:
        patterns = Path(folder) / "patterns"
        patterns.write_text(PATTERNS)
        stub = Path(folder) / f"{module}.pyi"
        arguments = ["-qD", "-i", str(Path(file).parent), "-m", module, "-p", str(patterns), "-o", str(stub)]
        subprocess.run([sys.executable, "-m", "nanobind.stubgen", *arguments], check=True)
        raw = header() + stub.read_text()
    for command in (["check", "--fix-only", "--quiet"], ["format"]):
        # Under its final name, so that the repository's rules apply.
        name = ["--stdin-filename", str(STUBS / f"{module}.pyi"), "-"]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *name],
            input=raw,
            capture_output=True,
            text=True,
            check=True,
        )
        raw = done.stdout
    return raw


def main() -> None:
    for module in MODULES:
        (STUBS / f"{module}.pyi").write_text(generate(module))


if __name__ == "__main__":
    main()
