"""What to install where an extra's packages are missing."""

from __future__ import annotations

CPU_TORCH = "https://download.pytorch.org/whl/cpu"  # the index of torch's builds for CPUs


def needs_export(what: str, error: ImportError) -> str:
    """what: the subject of "needs more packages"."""
    return (
        f"{what} needs more packages ({error}): pip install --extra-index-url {CPU_TORCH} 'h2o-edge[export,cpu]'; "
        "without that index torch may bring gigabytes of CUDA"
    )
