"""A crowd before one slot: how fast a running h2o-serve refuses those for whom there is no room.

    h2o-serve bundle --port 8080 --slots 1 &
    python -m bench.serve.crowd --port 8080 --clients 200 --rounds 5

All clients are connected beforehand and ask in the same moment. Times are from a client's own request to the end
of the response's headers, as this one process sees them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    status: int
    seconds: float
    retry_after: str | None


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, tokens: int
) -> Outcome:
    body = json.dumps({"prompt": f"Client {number}", "max_tokens": tokens, "ignore_eos": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    seconds = time.perf_counter() - began
    fields = dict(line.lower().split(": ", 1) for line in answer[1:] if line)
    return Outcome(int(answer[0].split()[1]), seconds, fields.get("retry-after"))


async def crowd(port: int, clients: int, tokens: int) -> list[Outcome]:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(clients)]
    try:
        return await asyncio.gather(
            *(ask(reader, writer, number, tokens) for number, (reader, writer) in enumerate(connections))
        )
    finally:
        for _, writer in connections:
            writer.close()


def report(outcomes: list[Outcome]) -> dict[str, object]:
    refused = sorted(outcome.seconds for outcome in outcomes if outcome.status == 503)
    return {
        "answered": sum(outcome.status == 200 for outcome in outcomes),
        "refused": len(refused),
        "without_retry_after": sum(o.status == 503 and not o.retry_after for o in outcomes),
        "refusal_ms_median": round(1e3 * statistics.median(refused), 1) if refused else None,
        "refusal_ms_p99": round(1e3 * refused[int(0.99 * len(refused))], 1) if refused else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100, help="length of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for _ in range(arguments.rounds):
        print(json.dumps(report(asyncio.run(crowd(arguments.port, arguments.clients, arguments.tokens)))))


if __name__ == "__main__":
    main()
