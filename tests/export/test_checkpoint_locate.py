"""Where a checkpoint is looked for."""

from __future__ import annotations

import pytest
from tests.users import nameless_user

from h2o_export.checkpoints import locate
from h2o_runtime.errors import CheckpointError


@pytest.mark.parametrize("source", ["owner/name", "~/checkpoint"])
def test_a_user_without_a_home_has_no_hubs_cache(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks for the home as it is imported, and leaves the path as it is where there is none."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "~/.cache/huggingface/hub")
    with nameless_user(), pytest.raises(CheckpointError, match="Could not determine home directory"):
        locate(source, ["*"], download=True)
