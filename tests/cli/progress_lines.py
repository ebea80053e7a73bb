"""The lines that h2o-eval writes about its work where no terminal reads them."""

from __future__ import annotations

import re


def without_progress(err: bytes) -> bytes:
    """The rest of standard error. It must begin with what is measured, and go on with a line a measurement."""
    begin = re.match(
        rb"measuring \S.* beside \S.*\ntexts of [\d,]+ tokens: \S.*\n"
        rb"(\d+) measurements, about \d+ (seconds|minutes) or more\n",
        err,
    )
    assert begin is not None, err
    rest, lines = re.subn(rb"(?m)^\d+:\d\d:\d\d \d+ of \d+: \S.*\n", b"", err[begin.end() :])
    assert 1 <= lines <= int(begin[1]) + 1  # and one of the model's sanity; a stopped run has fewer
    return rest
