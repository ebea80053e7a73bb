"""A server that is killed while it writes: python killed_while_writing.py BUNDLE FOLDER TOKENS MEMBER

MEMBER is the number of the array of which half is written, or "rename": just before the file gets its name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime import Generator
from h2o_runtime.files import outputs
from h2o_runtime.policies.prefill import Full
from h2o_runtime.sessions import saved


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(bundle: str, folder: str, tokens: str, member: str) -> None:
    written = iter(range(1_000_000))
    whole = saved._write

    def write(file: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
        if str(next(written)) != member:
            whole(file, name, array)
            return
        with file.open(f"{name}.npy", "w") as half:
            half.write(np.ascontiguousarray(array).tobytes()[: array.nbytes // 2])
            assert file.fp is not None
            file.fp.flush()
            killed()

    saved._write = write
    if member == "rename":
        outputs.os.replace = killed  # type: ignore[assignment]
    policy = Full()
    with Generator.load(
        Path(bundle), context=400, threads=1, device="cpu", folder=Path(folder), folder_bytes=1 << 30
    ) as generator:
        generator.prefill(json.loads(tokens), policy)


if __name__ == "__main__":
    main(*sys.argv[1:])
