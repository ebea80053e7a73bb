"""The folder of files that only save their user's time."""

from __future__ import annotations

import os
from pathlib import Path

from h2o_runtime.errors import OutputError


def user_cache() -> Path:
    """Raises OutputError for a user without a home, as in a container whose user has a number alone."""
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise OutputError(
            "files are kept in the user's cache, and this user has no home folder: set XDG_CACHE_HOME to a folder"
        ) from error
