"""Adapters, such as those of LoRA (Hu et al., 2021), which are no part of a model until they are merged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from h2o_export.checkpoint_files import ADAPTER
from h2o_runtime.errors import CheckpointError
from h2o_runtime.files.inputs import confined

_WEIGHTS = "adapter_model"
_IN_MODEL = (".base_layer.", ".lora_A.")
_MERGE = "PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder)"


def check_without_adapter(folder: Path, source: str) -> None:
    """Raises CheckpointError for a folder with an adapter, alone or beside a model."""
    if not (folder / ADAPTER).is_file():
        return
    weights = [file for file in folder.glob("*.safetensors") if not file.name.startswith(_WEIGHTS)]
    if weights and (folder / "config.json").is_file():
        raise CheckpointError(
            f"{source}: has an adapter beside the model ({ADAPTER}); merge it by `adapter`, which takes its "
            "folder, or remove its files to export the model without it"
        )
    raise CheckpointError(
        f"{source}: is an adapter for {_base_model(folder)}, not a model; export that model, and name this "
        "folder by `adapter`"
    )


def check_merged(names: Iterable[str], source: object) -> None:
    """Raises CheckpointError for tensors of a model whose adapter is not merged."""
    for name in names:
        if any(part in name for part in _IN_MODEL):
            raise CheckpointError(
                f"{source}: its tensor '{name}' is that of an adapter, or of a model with one; merge it first: "
                f"{_MERGE}"
            )


def _base_model(folder: Path) -> str:
    try:
        said: Any = json.loads(confined(folder, ADAPTER, CheckpointError).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        said = None
    name = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    return f"'{name}'" if name else "another model"
