"""Where a checkpoint is looked for."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from tests.users import nameless_user

from h2o_export.checkpoints import locate
from h2o_runtime.errors import CheckpointError


@pytest.mark.parametrize("source", ["owner/name", "~/checkpoint"])
def test_a_user_without_a_home_has_no_hubs_cache(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks for the home as it is imported, and leaves the path as it is where there is none."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "~/.cache/huggingface/hub")
    with nameless_user(), pytest.raises(CheckpointError, match="Could not determine home directory"):
        locate(source, ["*"], download=True)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("/a", "no such file or folder"),
        ("~/a", "no such file or folder"),
        ("./a", "no such file or folder"),
        ("../a", "no such file or folder"),
        ("a", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("a/", "no such file or folder"),
        ("models/a.gguf", "no such file or folder"),
        ("a\\b/c", "no such file or folder"),
        ("here/b", "no such file or folder; the hub is not asked, because there is a folder here"),
    ],
)
def test_a_path_of_this_machine_is_not_sent_to_the_hub(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked")
    )
    with pytest.raises(CheckpointError) as missing:
        locate(source, ["*"], download=True)
    assert str(missing.value) == f"{source}: {told}"


ANSWER = httpx.Response(500, request=httpx.Request("GET", "https://hub.example/x"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known"),
            "it cannot be reached",
        ),
        (RepositoryNotFoundError("Got: 404", response=ANSWER), "it has no public checkpoint of this name"),
        (
            GatedRepoError("Got: 403", response=ANSWER),
            "its terms must be accepted there first, and HF_TOKEN set",
        ),
        (HfHubHTTPError("Got: 500", response=ANSWER), "it answers with status 500"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_why_the_hub_gave_nothing_is_told_in_our_words(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError) as missing:
        locate("owner/name", ["*"], download=True)
    assert str(missing.value) == f"owner/name: no such folder here, and the hub could not give it: {told}"
