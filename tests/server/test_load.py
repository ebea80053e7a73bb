"""Many clients and one slot."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.server.running import Pace, Server, request, wait_for

Serve = Callable[..., Server]

SLOW_TILES = """
import time
from h2o_runtime.execution.forward import Forward
dense = Forward.dense
def slow(self, *args):
    if len(args[1]) > 1:
        time.sleep(0.5)
    return dense(self, *args)
Forward.dense = slow
"""


@dataclass(frozen=True)
class Outcome:
    client: int
    status: int
    headers: dict[str, str]
    order: int  # in which the answers came
    body: dict[str, object]


async def _crowd(
    server: Server, clients: int, then: Callable[[int], None] = lambda number: None
) -> list[Outcome]:
    """All connect, then all ask in the order of their numbers. `then` is called after each has sent its request."""
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(clients)]
    outcomes: list[Outcome] = []

    async def answer(number: int, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)
        }
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        outcomes.append(Outcome(number, int(lines[0].split()[1]), headers, len(outcomes), body))

    for number, (_, writer) in enumerate(connections):
        prompt = {"prompt": f"Client {number}", "max_tokens": 20, "ignore_eos": True}
        writer.write(request("POST", "/v1/completions", json.dumps(prompt).encode()))
        await writer.drain()
        await asyncio.to_thread(then, number)
    await asyncio.gather(*(answer(number, reader) for number, (reader, _) in enumerate(connections)))
    for _, writer in connections:
        writer.close()
    return outcomes


def test_two_hundred_clients_at_once(serve: Serve) -> None:
    server = serve("--limits", "queue=8")
    outcomes = asyncio.run(_crowd(server, 200))
    assert len(outcomes) == 200
    answered = [outcome for outcome in outcomes if outcome.status == 200]
    refused = [outcome for outcome in outcomes if outcome.status == 503]
    assert len(answered) + len(refused) == 200
    assert len(answered) >= 9  # one in the slot and eight in the queue; more when some were done in time
    assert all(int(outcome.headers["retry-after"]) >= 1 for outcome in refused)
    assert all(outcome.body["error"]["code"] == "queue_full" for outcome in refused)  # type: ignore[index]

    def served() -> list[str]:
        return re.findall(r"(cmpl-\w+): prompt ", server.log)

    wait_for(lambda: len(served()) == len(answered))
    assert served() == [str(outcome.body["id"]) for outcome in sorted(answered, key=lambda o: o.order)]
    assert server.metric("h2o_requests_total", outcome="length") == len(answered)
    assert server.metric("h2o_requests_total", outcome="refused") == len(refused)
    # No ticket is lost: the queue takes as many as before.
    again = asyncio.run(_crowd(server, 9))
    assert [outcome.status for outcome in again] == [200] * 9


def test_who_waits_too_long_is_refused(serve: Serve, tmp_path: Path) -> None:
    pace = Pace(tmp_path)
    server = serve("--limits", "queue_timeout=0.5", code=pace.code)
    pace.hold()

    def then(number: int) -> None:
        if number == 0:
            wait_for(lambda: server.metric("h2o_busy") == 1)
        if number == 2:
            wait_for(lambda: server.metric("h2o_requests_total", outcome="refused") == 2)
            pace.go()

    outcomes = sorted(asyncio.run(_crowd(server, 3, then)), key=lambda o: o.client)
    assert [outcome.status for outcome in outcomes] == [200, 503, 503]
    assert outcomes[1].body["error"]["code"] == "queue_timeout"  # type: ignore[index]
    assert int(outcomes[1].headers["retry-after"]) >= 1


def test_a_long_silence_is_no_dead_connection(serve: Serve) -> None:
    impatient = "from h2o_server.scheduling import job_events\njob_events._QUIET = 0.2\n"
    server = serve(code=SLOW_TILES + impatient)
    text = server.complete([7] * 500, stream=True).text
    assert text.count(": keep-alive\n\n") >= 3  # six layers of half a second
    assert text.endswith("data: [DONE]\n\n")
