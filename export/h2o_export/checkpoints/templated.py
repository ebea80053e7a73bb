"""A checkpoint with another chat template than its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from h2o_export.checkpoints.checkpoint import Checkpoint
from h2o_export.checkpoints.derived import DerivedCheckpoint
from h2o_runtime.text import ChatTemplate


@dataclass(frozen=True)
class TemplatedCheckpoint(DerivedCheckpoint):
    """template  Jinja source"""

    template: str

    def write_tokenizer(self, folder: Path) -> None:
        super().write_tokenizer(folder)
        (folder / ChatTemplate.FILE).write_text(self.template, encoding="utf-8")


def templated(checkpoint: Checkpoint, file: Path | None) -> Checkpoint:
    """The checkpoint with the template in `file`; None: the checkpoint itself. Raises InputError."""
    if file is None:
        return checkpoint
    template = ChatTemplate.read(file, {})
    template.close()
    return TemplatedCheckpoint(
        checkpoint.path, checkpoint.source, checkpoint.config, checkpoint, template.texts["default"]
    )
