"""Starting, stopping and breaking a server, from the outside."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.forked import ROOT, commands
from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Pace, Server, error_of, free_port, wait_for

from h2o_cli.serve import main
from h2o_runtime.errors import ServerError
from h2o_server.scheduling import inference
from h2o_server.serve import LAST_WORDS, bind
from h2o_server.settings import ServerSettings

FAILING_DECODE = """
from h2o_runtime.execution.forward import Forward
def broken(self, rows):
    raise ValueError("a defect that nobody foresaw")
Forward.decode_rows = broken
"""
ENDLESS_WRITING = """
import time
from pathlib import Path
from h2o_runtime.sessions.folder import SessionFolder
def endless(self):
    Path({file!r}).touch()
    time.sleep(10_000)
SessionFolder.close = endless
"""
ENDLESS_DECODE = """
import time
from pathlib import Path
from h2o_runtime.execution.forward import Forward
def endless(self, rows):
    Path({file!r}).touch()
    time.sleep(10_000)
Forward.decode_rows = endless
"""


def long_stream(server: Server, **parameters: object) -> Iterator[object]:
    """The events of an answer that goes on until something ends it."""
    return server.streamed("/v1/completions", {"prompt": "Once", "ignore_eos": True} | parameters)


def run_to_the_end(*flags: object) -> subprocess.CompletedProcess[str]:
    done = commands("serve").run("serve", [str(flag) for flag in flags], None, PATIENCE)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("second_signal", [False, True])
def test_a_stream_that_outlives_the_grace_ends_with_an_error(
    serve: Serve, tmp_path: Path, second_signal: bool
) -> None:
    grace = 600 if second_signal else 0.5
    server = serve("--grace", grace, code=Pace(tmp_path, 0.05).code)
    stream = long_stream(server, max_tokens=4000)
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    if second_signal:
        wait_for(lambda: server.get("/health").status_code == 503)
        server.process.send_signal(signal.SIGINT)
    told = list(stream)
    assert told[-1] != "[DONE]"
    assert told[-1]["error"]["code"] == "shutting_down"  # type: ignore[index]
    assert server.process.wait(PATIENCE) == 143


def test_an_idle_server_stops_at_once_but_not_of_an_ignored_signal(serve: Serve) -> None:
    server = serve("--grace", 600, code="import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n")
    with server.client() as client:  # a kept connection does not keep the server
        server.process.send_signal(signal.SIGHUP)  # as under nohup
        assert client.get("/health").status_code == 200
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130
    assert "Traceback" not in server.log


def test_a_second_signal_ends_the_writing_of_conversations(serve: Serve, tmp_path: Path) -> None:
    """But SIGHUP does not: a terminal that is closed sends it several times."""
    code = ENDLESS_WRITING.format(file=str(tmp_path / "begun"))
    server = serve("--cache-dir", tmp_path / "conversations", code=code)
    server.process.send_signal(signal.SIGHUP)
    wait_for((tmp_path / "begun").exists)
    server.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        server.process.wait(0.3)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 143


def test_the_service_managers_have_patience() -> None:
    """For what the server may take: the grace, three times the last words, and the writing of conversations."""
    unit = (ROOT / "docs" / "h2o-serve.service").read_text(encoding="utf-8")
    grace, patience = (
        float(*re.findall(rf"{name}[ =](\d+)", unit)) for name in ("--grace", "TimeoutStopSec")
    )
    assert patience >= grace + 3 * LAST_WORDS + inference.KEEPING
    assert grace == ServerSettings.grace
    guide = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    told = re.findall(r"(?:TimeoutStopSec=|--stop-timeout |eriod\w*: )(\d+)", guide)
    assert [float(seconds) for seconds in told] == [patience] * 4


def test_a_request_that_is_still_being_sent_does_not_keep_the_server(serve: Serve) -> None:
    # uvicorn waits five seconds for the rest of it; here it would wait for longer than the test.
    code = "from h2o_server import serve\nserve.LAST_WORDS = 600\n"
    server = serve("--grace", 600, code=code)
    with server.connection(PATIENCE) as connected:
        connected.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n{"
        )
        assert connected.recv(1000).startswith(b"HTTP/1.1 100 ")  # the body is waited for
        server.process.send_signal(signal.SIGTERM)
        answer = b"".join(iter(lambda: connected.recv(65536), b""))
        assert server.process.wait(PATIENCE) == 143
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in answer
    assert "Traceback" not in server.log


def test_an_open_door_and_too_large_a_pool_are_told(serve: Serve) -> None:
    open_door = serve("--host", "0.0.0.0")
    closed = serve("--host", "0.0.0.0", "--cache-pool", 999_999_999, key="k")
    assert ["anybody" in server.log for server in (open_door, closed)] == [True, False]
    wait_for(lambda: "a full --cache-pool the server takes" in closed.log)
    assert "--cache-pool the server takes" not in open_door.log


def test_a_port_in_use_is_told(tiny_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run_to_the_end(tiny_bundle, "--port", taken.getsockname()[1])
    assert ended.returncode == 1
    assert "cannot listen on 127.0.0.1" in ended.stderr
    assert "--port, or stop the program that uses it" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("host", ["a..b", "a" * 300, "fe80::1%nope"])
def test_a_host_that_is_none_is_told(host: str) -> None:
    with pytest.raises(ServerError, match=r"^cannot listen on .*--host") as caught:
        bind(host, 0)
    assert "while attempting" not in str(caught.value)
    assert "stop the program" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--port", 70000), "port"),
        (("--host", "localhost:8080"), "--host takes no port, but is 'localhost:8080': give that as --port"),
        (("--limits", "body=65"), "memory (64 MiB) must be at least body (65 MiB)"),
        (("--limits", "body=0"), "body must be at least 1"),
        (("--allowed-host", "http://a.b"), "--allowed-host"),
        (("--cache-dir-limit", 9), "--cache-dir-limit has no effect without --cache-dir"),
        (("--slots", "1 piece=1024"), "piece has no effect with 1 slot"),
        (("--alias", os.fsdecode(b"mod\xe8le")), "--alias is 'mod\\udce8le', which is not UTF-8"),
        (("--cors-origin", "https://a.example/page"), "--cors-origin"),
        (("--h2o-local", 900, "--h2o-heavy", 900), "chunk_size"),
    ],
)
def test_flags_out_of_range_are_told(flags: tuple[object, ...], word: str, tiny_bundle: Path) -> None:
    ended = CliRunner().invoke(main, [str(tiny_bundle), *map(str, flags)])
    assert ended.exit_code == 2
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("# the laptop's\n  # another\n", 1, "holds no API key"),
        ("schlüssel\n", 2, "an API key must be printable ASCII characters"),
    ],
)
def test_a_file_without_a_key_that_can_be_used_is_told(
    tiny_bundle: Path, tmp_path: Path, text: str, code: int, says: str
) -> None:
    (tmp_path / "keys").write_text(text, encoding="utf-8")
    ended = run_to_the_end(tiny_bundle, "--api-key-file", tmp_path / "keys")
    assert (ended.returncode, says in ended.stderr) == (code, True)


def test_a_full_disk_for_the_log_costs_only_the_log(tiny_bundle: Path) -> None:
    port = free_port()
    with Path("/dev/full").open("r+b", buffering=0) as full:
        words: list[str | bytes] = [str(tiny_bundle), "--port", str(port)]
        process = commands("serve").start("serve", words, full.fileno(), full.fileno(), full.fileno())
    try:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            try:
                return httpx.get(f"{url}/health", verify=False).status_code == 200
            except httpx.ConnectError:
                return False

        wait_for(ready)
        for _ in range(3):
            answer = httpx.post(f"{url}/v1/completions", json={"prompt": "Once", "max_tokens": 2})
            assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (143, 120)  # 120: Python could not flush its standard streams
    finally:
        process.kill()
        process.wait()


def test_a_failed_inference_thread_is_told_to_everyone(serve: Serve, tmp_path: Path) -> None:
    """Whose answer has begun, who waits, and who comes later."""
    pace = Pace(tmp_path)
    server = serve(code=FAILING_DECODE + pace.code)
    assert server.complete(max_tokens=1).status_code == 200  # sampled from the prompt's own logits
    pace.hold()
    stream = long_stream(server, max_tokens=4000)
    next(stream)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.complete) for _ in range(2)]
        wait_for(lambda: server.metric("h2o_queue_length") == 2)
        pace.go()
        assert all(error_of(one.result(), 500)["code"] == "inference_failed" for one in waiting)
    assert list(stream)[-1]["error"]["code"] == "inference_failed"  # type: ignore[index]
    assert error_of(server.get("/health"), 500)["code"] == "inference_failed"
    assert error_of(server.complete(), 500)["code"] == "inference_failed"
    assert error_of(server.chat(), 500)["code"] == "inference_failed"
    assert "a defect that nobody foresaw" in server.log
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 143


def test_a_computation_that_does_not_end_does_not_keep_the_process(serve: Serve, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    server = serve("--grace", 0, code=ENDLESS_DECODE.format(file=str(inside)))
    stream = long_stream(server, max_tokens=10)
    next(stream)
    wait_for(inside.exists)
    server.process.send_signal(signal.SIGTERM)
    assert "error" in list(stream)[-1]  # type: ignore[operator]
    assert server.process.wait(PATIENCE) == 1
    assert "Traceback" not in server.log


def test_the_json_log_is_json_and_holds_no_secret(serve: Serve) -> None:
    server = serve("--log-format", "json", key="a-secret-key")
    headers = {"Authorization": "Bearer a-secret-key"}
    body = {"prompt": "a secret prompt", "max_tokens": 2}
    assert server.post("/v1/completions?note=a-secret-query", body, headers=headers).status_code == 200
    assert server.post("/v1/completions", body, headers={"Authorization": "Bearer guess"}).status_code == 401
    wait_for(lambda: " 401 " in server.log)
    for line in server.log.splitlines():
        entry = json.loads(line)
        assert {"time", "level", "logger", "message"} <= set(entry)
    assert "secret" not in server.log
    assert "guess" not in server.log


def test_health_says_that_the_model_is_being_loaded(serve: Serve, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slow = f"""
import time
from pathlib import Path
from h2o_runtime.text_model import TextModel
load = TextModel.load.__func__
def slow(cls, *args, **options):
    while not Path({str(asked)!r}).exists():
        time.sleep(0.01)
    return load(cls, *args, **options)
TextModel.load = classmethod(slow)
"""
    server = serve(code=slow, wait=False)
    server.wait_until_listening()
    assert error_of(server.get("/health"), 503)["code"] == "loading"
    refused = server.complete()
    assert error_of(refused, 503)["code"] == "loading"
    assert int(refused.headers["retry-after"]) >= 1
    asked.touch()
    server.wait_until_ready()
    assert server.complete().status_code == 200


@pytest.mark.parametrize("outcome", ["time.sleep(10_000)", "time.sleep(1); raise MemoryError"])
def test_ctrl_c_while_loading_ends_it(serve: Serve, outcome: str) -> None:
    code = f"""
import time
from h2o_runtime.text_model import TextModel
def load(*args, **options): {outcome}
TextModel.load = load
"""
    server = serve(code=code, wait=False)
    server.wait_until_listening()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(PATIENCE) in (130, 1)
    assert "Traceback" not in server.log
