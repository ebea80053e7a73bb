"""Where nvcc is, test_ptx.py runs the operators' tests, all in one process that counts kernels: once is enough."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests import emulation
from tests.plugins.cuda.toolkit import OPERATORS_TESTS


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files that the command names are not asked about."""
    elsewhere = shutil.which("nvcc") is not None and emulation.PTX not in os.environ
    return True if elsewhere and collection_path.name in OPERATORS_TESTS else None
