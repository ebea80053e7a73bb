"""Peers' own converters, each a command of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h2o_cli.bench.systems.system import Absent


def convert(command: Sequence[str], output: Path, fails: str) -> None:
    """Run a converter without network access. `made` is a file that it must write.

    Raises Absent with `fails` and the last line that the converter wrote.
    """
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=offline, check=False)
    if done.returncode or not output.is_file():
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise Absent(f"{fails}: {lines[-1][:300]}")


def gguf_as_folder(file: Path, folder: Path) -> None:
    """The weights of a GGUF file as float32 in a folder as transformers writes it. Raises Absent."""
    command = [sys.executable, "-m", __name__, str(file), str(folder)]
    convert(command, folder / "config.json", f"transformers cannot read {file.name}")


def _write_folder(file: Path, folder: Path) -> None:
    import torch
    import transformers

    auto: Any = transformers
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = auto.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # transformers refuses to save it: it counts as quantized, though its weights are floats by now.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with torch.device("meta"):
        unquantized = type(model)(model.config)
    unquantized.load_state_dict(model.state_dict(), assign=True)
    unquantized.save_pretrained(folder)
    auto.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    _write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
