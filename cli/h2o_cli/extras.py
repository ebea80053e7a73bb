"""What to install where an extra's packages are missing."""

from __future__ import annotations


def needs_export(what: str, error: ImportError) -> str:
    """what: the subject of "needs more packages"."""
    return (
        f"{what} needs more packages ({error}): pip install 'h2o-edge[export,cpu]', on Linux with torch's CPU "
        "index in PIP_EXTRA_INDEX_URL: without it torch brings gigabytes of CUDA"
    )
