"""How a checkpoint of the package sentence-transformers pools hidden states, from its `modules.json`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from h2o_export.checkpoint_files import MODULES
from h2o_runtime.bundles.manifest import EmbeddingSpec
from h2o_runtime.errors import CheckpointError
from h2o_runtime.files.inputs import confined
from h2o_runtime.names import Pooling

log = logging.getLogger(__name__)

# The value of `pooling_mode`, or the key that is true after `pooling_mode_`.
_POOLINGS = {
    "mean": Pooling.MEAN,
    "mean_tokens": Pooling.MEAN,
    "lasttoken": Pooling.LAST,
}
_PREFIX = "pooling_mode_"


def embedding_spec(folder: Path) -> EmbeddingSpec:
    """The default where the folder does not say it. Raises CheckpointError for files that it cannot read.

    A warning names what a server will not compute.
    """
    modules = _read(folder, MODULES)
    if modules is None:
        return EmbeddingSpec()
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise CheckpointError(f"{folder / MODULES}: must be a list of modules; download it again")
    pooling, normalized, others = Pooling.MEAN, False, []
    for module in modules:
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Pooling":
            said = _read(folder, f"{module.get('path')}/config.json")
            mode = _mode(said if isinstance(said, dict) else {})
            if mode in _POOLINGS:
                pooling = _POOLINGS[mode]
            else:
                others.append(f"pooling {mode!r}")
        elif kind == "Normalize":
            normalized = True
        elif kind != "Transformer":
            others.append(kind)
    if others:
        log.warning(
            "%s: its embeddings need what is not supported: %s; /v1/embeddings gives other vectors",
            folder,
            ", ".join(others),
        )
    return EmbeddingSpec(pooling=pooling, normalized=normalized)


def _mode(said: dict[str, Any]) -> str:
    """Of a pooling's config.json, of new and old versions; several are joined by +."""
    if isinstance(said.get("pooling_mode"), str):
        return str(said["pooling_mode"])
    return "+".join(
        key.removeprefix(_PREFIX) for key, on in said.items() if key.startswith(_PREFIX) and on is True
    )


def _read(folder: Path, name: str) -> Any:
    path = confined(folder, name, CheckpointError)
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON ({error}); download it again") from error
