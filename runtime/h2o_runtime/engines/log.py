"""TensorRT's log as Python logging."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


def make_logger(trt: Any) -> Any:
    """A logger for TensorRT's objects, whose information messages appear with -vv. Keeps the first lines of
    errors.

    Clear `errors` before a call whose failure `reason` should explain.
    """
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.INFO,  # the caller raises it; here it would appear twice
        trt.ILogger.Severity.ERROR: logging.INFO,
        trt.ILogger.Severity.WARNING: logging.INFO,
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            log.log(levels.get(severity, logging.DEBUG), "TensorRT: %s", message)
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.errors.append(message.strip().splitlines()[0])

        @property
        def reason(self) -> str:
            """TensorRT's reason for the failure of the last call."""
            return self.errors[0] if self.errors else "it gives no reason; -v shows its log"

    return Logger()
