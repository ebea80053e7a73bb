"""The lines that commands write about long work where no terminal reads them."""

from __future__ import annotations

import re

LINE = rb"(?m)^\d+:\d\d:\d\d \d+ of \d+: \S.*\n"


def without_stages(err: bytes) -> bytes:
    """The rest of the standard error of a command that writes lines only where it takes long."""
    return re.sub(LINE, b"", err)


def without_progress(err: bytes) -> bytes:
    """The rest of the standard error of h2o-eval.

    It must begin with what is measured, and go on with a line a measurement.
    """
    begin = re.match(
        rb"measuring \S.* beside \S.*\ntexts of [\d,]+ tokens: \S.*\n"
        rb"(\d+) measurements, about \d+ (seconds|minutes) or more\n",
        err,
    )
    assert begin is not None, err
    rest, lines = re.subn(LINE, b"", err[begin.end() :])
    assert 1 <= lines <= int(begin[1]) + 1  # and one of the model's sanity; a stopped run has fewer
    return rest
