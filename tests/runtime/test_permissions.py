"""What an ordinary user may not read is told as that, and not as damage."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError
from h2o_runtime.sessions.folder import SessionFolder

NOBODY = 65534


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may read everything, so it becomes nobody meanwhile."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def bundle(tiny_bundle: Path) -> Iterator[Path]:
    """Where nobody may go too: pytest's folders are its user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(shutil.copytree(tiny_bundle, Path(folder) / "home" / "bundle"))
        for each in Path(folder).rglob("*"):
            each.chmod(0o755)


@pytest.mark.parametrize("closed", ["..", ".", "manifest.json", "onnx"])
def test_a_bundle_that_may_not_be_read(bundle: Path, closed: str) -> None:
    (bundle / closed).chmod(0)
    with (
        ordinary_user(),
        pytest.raises(BundleError, match=r"Permission denied; check its permissions") as caught,
    ):
        Bundle.open(bundle)
    assert "again" not in str(caught.value)


def test_a_folder_of_conversations_that_may_not_be_written(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle.chmod(0o555)
    with ordinary_user():
        SessionFolder(bundle, 1 << 20, "a bundle").close()
    assert caplog.text.count("cannot be written") == 1
