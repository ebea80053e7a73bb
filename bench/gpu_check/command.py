"""A command of h2o-edge: python -m bench.gpu_check.launch BUILD bench.gpu_check.command NAME [ARGUMENT ...]"""

from __future__ import annotations

import sys


def main() -> None:
    from h2o_cli import entry

    name = sys.argv[1]
    sys.argv[:2] = [f"h2o-{name}"]
    getattr(entry, name)()


if __name__ == "__main__":
    main()
