"""h2o-serve as its users run it: a process of its own, spoken to over HTTP and over bare sockets."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.forked import ROOT, commands

PATIENCE = 180.0  # seconds for what takes a moment on an idle machine

_PACED_DECODE = """
import time
from pathlib import Path
from h2o_runtime.execution.forward import Forward
decode_rows = Forward.decode_rows
def paced(self, rows):
    began = time.monotonic()
    while time.monotonic() < began + float(Path({file!r}).read_text()):
        time.sleep(0.002)
    return decode_rows(self, rows)
Forward.decode_rows = paced
"""

_LISTENING = re.compile(r"listening on (http://\S+:(\d+))")


class Server:
    """A running h2o-serve, of one slot unless flags say otherwise. `log` is its standard error so far.

    code: Python that changes the server before it starts.
    With an `environment`, or where `fresh` since its memory counts, it loads all libraries itself.
    """

    def __init__(
        self,
        bundle: Path,
        *flags: object,
        code: str = "",
        environment: dict[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        assert not (code and (fresh or environment))
        self._lines: list[str] = []
        self._told = threading.Event()  # the port, or the end
        self.url = ""
        self.port = 0
        usual = {"--port": 0, "--threads": 1, "--slots": 1}
        beside = (word for flag, value in usual.items() if flag not in flags for word in (flag, value))
        words = [str(word) for word in (bundle, *beside, *flags)]
        errors, log = os.pipe()
        with open(os.devnull, "r+b") as nothing:
            if fresh or environment is not None:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "h2o_cli.serve", *words],
                    cwd=ROOT,
                    env={**os.environ, **(environment or {})},
                    stdin=nothing,
                    stdout=nothing,
                    stderr=log,
                )
            else:
                self.process = commands("serve").start(
                    "serve", words, nothing.fileno(), nothing.fileno(), log, code
                )
        os.close(log)
        self._reader = threading.Thread(target=self._read, args=(errors,), daemon=True)
        self._reader.start()
        self._http: httpx.Client | None = None

    def __enter__(self) -> Server:
        """Once it is ready."""
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def wait_until_listening(self) -> None:
        assert self._told.wait(PATIENCE), f"h2o-serve said nothing of a port:\n{self.log}"
        assert self.url, f"h2o-serve ended with {self.process.wait(PATIENCE)}:\n{self.log}"

    def wait_until_ready(self) -> None:
        self.wait_until_listening()

        def ready() -> bool:
            try:
                return self.get("/health").status_code == 200
            except httpx.TransportError:
                raise AssertionError(f"h2o-serve ended with {self.process.wait(5)}:\n{self.log}") from None

        wait_for(ready, pause=0.05)

    def stop(self) -> None:
        if self._http is not None:
            self._http.close()
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, verify=False, **options)

    @property
    def http(self) -> httpx.Client:
        """A client that keeps its connections."""
        if self._http is None:
            self._http = self.client()
        return self._http

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """body: bytes, or a value written as JSON, lone surrogates and numbers beyond a float's range included."""
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        if not isinstance(body, bytes):
            body = json.dumps(body).replace("Infinity", "1e400").encode()
        return self.http.post(path, content=body, headers=headers, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def chat(self, text: str = "Hello.", **parameters: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4} | parameters
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Once", **parameters: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 4} | parameters)

    def streamed(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The events of a stream, as they come."""
        with self.client() as client, client.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield from events(response.iter_lines())

    @contextlib.contextmanager
    def connection(self, timeout: float = PATIENCE) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout) as connected:
            yield connected

    def metric(self, name: str, **labels: str) -> float:
        """A figure of /metrics; 0 where there is none yet."""
        wanted = name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else "")
        for line in self.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series == wanted:
                return float(value)
        return 0.0

    def wait_until_idle(self) -> None:
        """Nobody is served and nobody waits."""
        wait_for(lambda: self.metric("h2o_busy") == 0 and self.metric("h2o_queue_length") == 0, pause=0.05)

    def _read(self, errors: int) -> None:
        with open(errors, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._lines.append(line)
                if found := _LISTENING.search(line):
                    self.url, self.port = found[1], int(found[2])
                    self._told.set()
        self._told.set()


class Pace:
    """How long a server waits before each step of its answers; `code` makes a server do so.

    A test that needs an answer to go on until it has looked holds it, and loses no time when it lets it go.
    """

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self._file = folder / "pace"
        self.set(seconds)
        self.code = _PACED_DECODE.format(file=str(self._file))

    def set(self, seconds: float) -> None:
        """From now on; a step that waits heeds it, too."""
        replace_file(self._file, str(seconds))

    def hold(self) -> None:
        self.set(10_000)

    def go(self) -> None:
        self.set(0)


def replace_file(file: Path, text: str) -> None:
    """Whoever reads meanwhile finds all of the old or all of the new text."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def free_port() -> int:
    """A port that stays free while nobody listens: below those that the system gives to whoever asks for any."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all ports are taken")


def wait_for(condition: Callable[[], object], seconds: float = PATIENCE, pause: float = 0.02) -> None:
    """Ask again and again; a busy machine only makes it slower."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP request as bytes; keyword arguments are headers, _ standing for -."""
    fields = {"Host": "localhost", "Content-Length": str(len(body)), "Content-Type": "application/json"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def chat_bytes(**parameters: Any) -> bytes:
    """A whole chat request as bytes."""
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4} | parameters
    return request("POST", "/v1/chat/completions", json.dumps(body).encode())


def events(lines: Iterator[str]) -> Iterator[Any]:
    """The JSON values of a stream of server-sent events, then the text "[DONE]"."""
    for line in lines:
        if line.startswith("data: "):
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object of a response, after a look at its shape: OpenAI's, exactly."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert (
        {"message", "type", "param", "code"}
        <= set(error)
        <= {*("message", "type", "param", "code", "n_prompt_tokens", "n_ctx")}
    )
    assert isinstance(error["message"], str)
    assert error["message"].strip()
    assert "\n" not in error["message"]
    assert isinstance(error["type"], str)
    assert error["type"].endswith("_error")
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error
