"""Four requests at once: python -m bench.gpu_check.four_requests BUILD BUNDLE ROWS [--device cuda]

A server with four slots answers each prompt alone and then all together. Texts must be equal. One row is appended
to ROWS. Exit code 0: equal; 1: not, or the server ended; its output is in the log.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.gpu_check.report import append

SLOTS, CONTEXT, STARTS = 4, 2048, 90  # seconds in which a server must have started
WORDS = "The harbour was quiet and the lamp at its end was lit. "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(build: Path, bundle: Path, device: str) -> Iterator[str]:
    """Its address, once it is ready. Raises RuntimeError if it ends or takes too long."""
    port = free_port()
    launch = [sys.executable, "-m", "bench.gpu_check.launch", str(build), "bench.gpu_check.command", "serve"]
    flags = ["--device", device, "--port", str(port), "--slots", str(SLOTS), "-c", str(CONTEXT)]
    process = subprocess.Popen([*launch, str(bundle), *flags])
    address = f"http://127.0.0.1:{port}"
    try:
        _await(address, process)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < STARTS:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server was not ready within {STARTS} s")


def answer(address: str, number: int, tokens: int) -> tuple[str, float]:
    """Text and seconds of one completion."""
    body = {
        "prompt": f"{number}. " + WORDS * (8 + number),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=STARTS) as reply:
        text: str = json.load(reply)["choices"][0]["text"]
    return text, time.perf_counter() - begin


def measure(address: str, tokens: int) -> dict[str, Any]:
    alone = [answer(address, number, tokens) for number in range(SLOTS)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(SLOTS) as pool:
        together = list(pool.map(lambda number: answer(address, number, tokens), range(SLOTS)))
    seconds = time.perf_counter() - begin
    return {
        "requests": SLOTS,
        "tokens": tokens,
        "texts_equal": [text for text, _ in alone] == [text for text, _ in together],
        "alone_s": sum(time for _, time in alone),
        "together_s": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("build", "bundle", "rows"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=48)
    asked = parser.parse_args()
    with server(asked.build, asked.bundle, asked.device) as address:
        row = {"bundle": asked.bundle.name, "device": asked.device, **measure(address, asked.tokens)}
    print(row)
    append(asked.rows, "requests", row)
    return 0 if row["texts_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
