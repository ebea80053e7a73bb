"""Nobody is called: libraries that report to their makers are told not to."""

from __future__ import annotations

import os

# Read by each library when it is imported, or before it first reports.
VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime from 1.32 on; its Python function comes too late
    "HF_HUB_DISABLE_TELEMETRY": "1",  # what a download that somebody asked for tells beside its own request
}


def decline_telemetry() -> None:
    """Set each variable that the user has not set. A library that was imported before is not reached."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
