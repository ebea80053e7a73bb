"""Runs a module of this folder: python -m bench.gpu_check.launch BUILD MODULE [ARGUMENT ...]

Packages come from this checkout first, with the native modules of BUILD, then from this Python, then from
BUILD/wheels. A missing package is no failure: an exit code reports it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from bench.gpu_check.steps import NOT_HERE

REPO = Path(__file__).resolve().parents[2]


def find_packages(build: Path) -> None:
    sys.path[:0] = [str(REPO / folder) for folder in ("runtime", "plugins", "export", "cli")]
    sys.path.append(str(build / "wheels"))
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
