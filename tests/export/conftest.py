"""What several tests of the exporter share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reference import checkpoints


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose header is most of its file, as GGUF."""
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("small") / "model", layers=1)
