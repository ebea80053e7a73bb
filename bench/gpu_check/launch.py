"""Runs a module of this folder: python -m bench.gpu_check.launch BUILD MODULE [ARGUMENT ...]

Packages come from this checkout first, with the native modules of BUILD, then from this Python, then from
BUILD/wheels. A missing package is no failure: an exit code reports it. h2o-edge itself need not be installed.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

from bench.gpu_check.steps import NOT_HERE

REPO = Path(__file__).resolve().parents[2]


def tell_version(build: Path) -> Path:
    """A folder with the metadata of h2o-edge: commands and servers read its version there."""
    found = re.search(r'^version = "(.+?)"', (REPO / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    folder = build / "metadata"
    place = folder / f"h2o_edge-{found[1]}.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    whole = place / f"METADATA.{os.getpid()}"  # other processes may read it meanwhile
    whole.write_text(f"Metadata-Version: 2.1\nName: h2o-edge\nVersion: {found[1]}\n")
    whole.replace(place / "METADATA")
    return folder


def find_packages(build: Path) -> None:
    sys.path[:0] = [str(REPO / folder) for folder in ("runtime", "server", "plugins", "export", "cli")]
    sys.path += [str(build / "wheels"), str(tell_version(build))]
    native = [build / "plugins" / name for name in ("python", "ort") if (build / "plugins" / name).is_dir()]
    if native:
        import h2o_plugins

        h2o_plugins.__path__[:0] = map(str, native)


def main() -> None:
    build, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    find_packages(Path(build))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed")
        sys.exit(NOT_HERE)


if __name__ == "__main__":
    main()
