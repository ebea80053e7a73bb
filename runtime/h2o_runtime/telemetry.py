"""Switches off the telemetry of libraries."""

from __future__ import annotations

import os

# Each library reads these when it is imported, or before its first report.
VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime from 1.32 on; its Python function comes too late
    "HF_HUB_DISABLE_TELEMETRY": "1",  # a download would otherwise report more than the request itself
}


def decline_telemetry() -> None:
    """Set each variable that the user has not set. Libraries imported earlier are not affected."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
