"""python -m tools.kernel_table [--json FILE] [--keep FOLDER] [--no-page] [ARCHITECTURE ...]"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.kernel_table import shared, table, toolkit
from tools.kernel_table.model import GPUS

USUAL = (86, 87, 90, 120)
PAGE = toolkit.REPO / "docs" / "kernel_table.md"
BEGIN, END = "<!-- by python -m tools.kernel_table -->", "<!-- end -->"


def collect(architectures: Sequence[int], cubins: Path, sources: Path) -> list[table.Row]:
    """A row for each kernel of the folder `sources` and each GPU; cubins are stored in `cubins`."""
    wanted = [(source, to) for to in architectures for source in sorted(sources.glob("*.cu"))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for a compiler
        found = pool.map(lambda of: list(toolkit.kernels(*of, cubins)), wanted)
        kernels = [kernel for each in found for kernel in each]
    dynamic = shared.dynamic_bytes(kernels, sources)
    return [table.row(kernel, dynamic) for kernel in kernels]


def rewrite(page: Path, content: str) -> None:
    """Write the tables between the page's markers."""
    text = page.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(f"{text[:begin]}\n\n{content}\n\n{text[end:]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_table", description=__doc__)
    parser.add_argument("architectures", nargs="*", type=int, help=f"of {sorted(GPUS)}; default: {USUAL}")
    parser.add_argument("--json", type=Path, help="every row, too")
    parser.add_argument(
        "--keep", type=Path, help="folder for machine code, which a later run need not compile"
    )
    parser.add_argument("--sources", type=Path, default=toolkit.SOURCES, help="folder with the kernels")
    parser.add_argument("--no-page", action="store_true", help="leave the page as it is")
    options = parser.parse_args()
    if unknown := set(options.architectures) - GPUS.keys():
        parser.error(f"no figures are known of {sorted(unknown)}, only of {sorted(GPUS)}: see model.py")
    lacking = toolkit.missing()
    if lacking:
        print(
            f"The table cannot be made: {lacking}. nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm are packages."
        )
        return 1
    architectures = toolkit.architectures(options.architectures or USUAL)
    with tempfile.TemporaryDirectory() as folder:
        rows = collect(architectures, options.keep or Path(folder), options.sources)
    if options.json:
        listed = ",\n".join(json.dumps(each, ensure_ascii=False) for each in table.as_json(rows))
        options.json.write_text(f"[\n{listed}\n]\n")
    if not options.no_page:
        rewrite(PAGE, table.markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
