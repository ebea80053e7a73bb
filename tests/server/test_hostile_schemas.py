"""Schemas that would keep a compiler busy for minutes: they are refused in seconds, and nobody else notices.

Bounds are ten times what a machine needs that has nothing else to do.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import EXAMPLE
from tests.ignoring import ignores_signals
from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Pace, Server, chat_bytes, error_of, wait_for

from h2o_runtime.errors import BackendError, ConfigError
from h2o_server.answers.grammar import GrammarCompiler
from h2o_server.answers.grammar_process import MEMORY, SECONDS

HEALTH = 5.0  # seconds, where a core is taken and the machine may have others to serve
REFUSED_WITHIN = 10.0 * (SECONDS + 1)
MOST_MEMORY = 2 * MEMORY  # of all processes together, beyond what they had: two compile at once

FACTORS = (7, 11, 13, 17, 19, 23, 29)
HUGE_FACTOR = {"type": "array", "items": {"type": "integer", "multipleOf": 215656441}}
MANY_FACTORS = {
    "type": "array",
    "items": {"type": "integer", "allOf": [{"multipleOf": factor} for factor in FACTORS]},
}
HOSTILE = [HUGE_FACTOR, MANY_FACTORS]
# It compiles, and its second token has too many rules to follow at once.
MANY_OBJECTS = {
    "anyOf": [{"type": "object", "properties": {"a": {"enum": [f"{n}{'x' * 50}"]}}} for n in range(2000)]
}


def asking(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        **more,
    }


def family(server: Server) -> list[psutil.Process]:
    """The server, the fork server of its grammars, and their processes: not what renders chat templates."""
    me = psutil.Process(server.process.pid)
    return [me, *(one for one in me.children(recursive=True) if _makes_grammars(one))]


def _makes_grammars(one: psutil.Process) -> bool:
    try:
        return "grammar_process" in " ".join(one.cmdline())
    except psutil.NoSuchProcess:
        return False


def memory(server: Server) -> int:
    total = 0
    for one in family(server):
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.fixture(scope="module")
def compiling(tiny_bundle: Path) -> Iterator[Server]:
    with Server(tiny_bundle, "--ctx-size", 512, fresh=True) as server:
        assert server.chat(**asking({"type": "null"})).status_code == 200  # the fork server is there
        yield server


def test_it_is_refused_soon_and_others_are_served_meanwhile(compiling: Server) -> None:
    """test_hostile_load.py sends MANY_FACTORS, too."""
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, **asking(HUGE_FACTOR)}
    server, idle, most, slowest = compiling, memory(compiling), 0, 0.0
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        refused = pool.submit(lambda: server.client().post("/v1/chat/completions", json=body))
        others = 0
        while not refused.done():
            look = time.monotonic()
            assert server.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - look)
            assert server.complete(max_tokens=1).status_code == 200
            others += 1
            most = max(most, memory(server))
            time.sleep(0.05)  # without it the looks would take more of the processor than what is looked at
        assert time.monotonic() - began < REFUSED_WITHIN
    error = error_of(refused.result(), 400)
    assert error["param"] == "response_format.json_schema.schema"
    assert "simpler schema" in error["message"]
    assert others > 1
    assert slowest < HEALTH
    assert most < idle + MOST_MEMORY
    wait_for(lambda: len(family(server)) == 2)  # the fork server stays
    assert memory(server) < idle + (50 << 20)


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_is_too_much_only_later(compiling: Server, stream: bool) -> None:
    began = time.monotonic()
    answer = compiling.chat(**asking(MANY_OBJECTS, stream=stream, max_tokens=50))
    assert time.monotonic() - began < REFUSED_WITHIN
    assert answer.status_code == (200 if stream else 400)
    assert "simpler schema" in answer.text
    compiling.wait_until_idle()
    assert compiling.chat(**asking({"type": "null"})).status_code == 200


def test_a_client_that_leaves_takes_it_along(compiling: Server) -> None:
    with compiling.connection() as connected:
        connected.sendall(chat_bytes(**asking(HUGE_FACTOR)))
        wait_for(lambda: len(family(compiling)) == 3)
        compiler = family(compiling)[-1]
        time.sleep(0.2)
    assert processor_time_at_its_end(compiler) < 0.75 * SECONDS
    compiling.wait_until_idle()


def processor_time_at_its_end(process: psutil.Process) -> float:
    used = 0.0
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            used = process.cpu_times().user
            time.sleep(0.01)
    return used


def test_the_queues_time_out_holds(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--limits", "queue_timeout=0.3")
    answer = server.chat(**asking(HUGE_FACTOR))  # whose compilation would end with another error
    assert error_of(answer, 503)["code"] == "queue_timeout"
    assert server.chat(max_tokens=1).status_code == 200


def test_the_first_signal_ends_the_server(serve: Serve) -> None:
    server = serve("--ctx-size", 64, "--grace", 600)
    with server.connection() as connected:
        connected.sendall(chat_bytes(**asking(HUGE_FACTOR)))
        wait_for(lambda: len(family(server)) == 3)
        processes = family(server)
        assert all(ignores_signals(process.pid) for process in processes[1:])
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.process.wait(PATIENCE) == 143
        assert time.monotonic() - began < 10
        assert b"shutting_down" in connected.recv(10_000)
    psutil.wait_procs(processes[1:], timeout=10)
    assert not [one for one in processes[1:] if one.is_running()]


def test_a_killed_server_leaves_no_process(serve: Serve) -> None:
    server = serve("--ctx-size", 64)
    with server.connection() as connected:
        connected.sendall(chat_bytes(**asking(HUGE_FACTOR)))
        wait_for(lambda: len(family(server)) == 3)
        children = family(server)[1:]
        server.process.kill()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_health_tells_of_a_request_that_does_not_come_back(serve: Serve, tmp_path: Path) -> None:
    pace = Pace(tmp_path)
    server = serve("--ctx-size", 64, "--limits", "stall_timeout=1", code=pace.code)
    pace.hold()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.complete, max_tokens=2, ignore_eos=True)
        with server.client() as other:
            wait_for(lambda: other.get("/health").status_code == 503, 30)
            assert error_of(other.get("/health"), 503)["code"] == "stalled"
            pace.go()
            assert answer.result().status_code == 200
            assert other.get("/health").status_code == 200


# Without a server


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(EXAMPLE / "tokenizer.json", 4096, [1])
    yield made
    made.close()


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_every_grammar_has_a_process_of_its_own(compiler: GrammarCompiler) -> None:
    before = len(children())
    with_one = compiler.json_schema({"type": "object"}, field="one")
    another = compiler.json_schema({"type": "array"}, field="another")
    assert len(children()) == before + 3
    with pytest.raises(ConfigError, match="refused"):
        compiler.gbnf("root ::= (", field="refused")
    another.close()
    another.close()
    assert with_one.allowed().any()
    with_one.close()
    assert len(children()) == before + 1


def test_a_dead_nursery_is_replaced(compiler: GrammarCompiler) -> None:
    before = children()
    compiler.json_schema({}, field="x").close()
    (server,) = set(children()) - set(before)
    server.kill()
    server.wait()
    with pytest.raises(BackendError, match="try again"):
        compiler.json_schema({}, field="x")
    assert compiler.json_schema({}, field="x").allowed().any()


def test_a_tokenizer_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(BackendError, match="cannot use this bundle's tokenizer"):
        GrammarCompiler(tmp_path / "tokenizer.json", 4096, [1]).json_schema({}, field="x")
