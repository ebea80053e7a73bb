"""Plain and hostile clients before a running h2o-serve for minutes: is everybody answered, and does memory stay?

    h2o-serve bundle --port 8080 --slots 4 --cache paged --cache-pool 64 &
    python -m bench.serve.endurance --port 8080 --minutes 10
    python -m bench.serve.endurance --port 8080 --serve "h2o-serve bundle --port 8080 --cache-dir kept"

Plain clients ask with prompts of all sizes, many of which begin alike; each must be answered. Each also has a
conversation. Some questions come again and again without the cache, and must have the answers that they got
alone. Hostile clients send what is refused, or leave somewhere on the way. Prints the server's memory after each
minute. Fails if a plain client is not answered, or if the least of the last three minutes exceeds the most of
minutes 2 to 4 by more than --most-growth.

With --serve it starts the server, hangs up on it while all clients are at work (SIGHUP), and starts it again:
questions must have the same answers, and most conversations must go on from what was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

TEXT = "The quick brown fox jumps over the lazy dog. "
SIZES = (1, 4, 15, 40, 100)  # sentences
TURNS = 6  # of a conversation
WORTH = 64  # cached tokens of a conversation that was not read from the beginning
LEAST_WENT_ON = 0.5  # conversations; one that is written too slowly is dropped
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
    "additionalProperties": False,
}
REFUSED = (
    b"{",
    b"[" * 100_000,
    b'{"prompt": "' + b"x" * 300_000 + b'"}',
    json.dumps({"prompt": [1] * 100_000}).encode(),
    json.dumps({"prompt": "x", "temperature": "hot"}).encode(),
    json.dumps({"prompt": "x", "json_schema": {"type": "person"}}).encode(),
    json.dumps({"prompt": "x", "prefill": {"heavy": 10**9}}).encode(),
)


class Crowd:
    """All clients. told: what came of their requests."""

    def __init__(self, port: int, seed: int) -> None:
        self.told: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._port, self._dice = port, random.Random(seed)
        self._known: dict[str, str] = {}  # answers to the questions that come again
        self._talks: list[list[dict[str, str]]] = []  # conversations up to their last answers

    async def run(
        self, plain: int, hostile: int, minutes: int, hang_up: Callable[[], object] | None = None
    ) -> list[float]:
        """→ the server's memory after each minute, MiB. hang_up: called at the end, before the clients leave."""
        await self.ask_alone()
        work = [self._plain() for _ in range(plain)] + [self._hostile() for _ in range(hostile)]
        clients = [asyncio.create_task(task) for task in work]
        looks = []
        for minute in range(1, minutes + 1):
            done, _ = await asyncio.wait(clients, timeout=60, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            looks.append(await self._memory())
            print(json.dumps({"minute": minute, "rss_mib": looks[-1], **self.told}), flush=True)
        if hang_up is not None:
            hang_up()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return looks

    async def ask_alone(self) -> None:
        """The questions that come again, while no other client asks."""
        for size in SIZES:
            await self._same_question(size)

    async def go_on(self) -> float:
        """Another turn of each conversation → the share of them that were not read from the beginning."""
        cached = [await self._say(talk) for talk in self._talks if talk]
        return sum(tokens >= WORTH for tokens in cached) / max(len(cached), 1)

    async def _say(self, talk: list[dict[str, str]]) -> int:
        """A turn → tokens of its prompt that were cached. The beginning is the conversation's own."""
        turn = {"role": "user", "content": f"{self._dice.randrange(10**9)}. {TEXT * 10}What is that number?"}
        body = {"messages": [*talk, turn], "max_tokens": 24, "temperature": 0}
        status, text = await self._ask(json.dumps(body).encode(), "/v1/chat/completions")
        if status != 200:
            self._not_answered(f"{status}: {text[-300:]}")
            return 0
        told = json.loads(text)
        talk += [turn, {"role": "assistant", "content": told["choices"][0]["message"]["content"]}]
        self.told["answered"] += 1
        return int(told["usage"]["prompt_tokens_details"]["cached_tokens"])

    def _not_answered(self, wrong: str) -> None:
        self.told["not_answered"] += 1
        self.wrong.append(wrong)

    async def _plain(self) -> None:
        talk: list[dict[str, str]] = []
        self._talks.append(talk)
        while True:
            if self._dice.random() < 0.2:
                await self._same_question(self._dice.choice(SIZES))
                if len(talk) >= 2 * TURNS:
                    talk.clear()
                await self._say(talk)
                continue
            prompt = f"Document {self._dice.randrange(4)}. " + TEXT * self._dice.choice(SIZES)
            body = {"prompt": prompt + f"Question {self._dice.randrange(1000)}", **self._options()}
            status, text = await self._ask(json.dumps(body).encode())
            ended = "data: [DONE]" in text if body["stream"] else '"finish_reason"' in text
            if status == 200 and ended:
                self.told["answered"] += 1
            else:
                self._not_answered(f"{status}: {text[-300:]}")

    def _options(self) -> dict[str, Any]:
        dice = self._dice
        more: dict[str, Any] = dice.choice([{}, {"n": 3}, {"json_schema": SCHEMA}, {"logprobs": 3}])
        stream = dice.random() < 0.5
        return {
            "max_tokens": dice.choice([1, 8, 40]),
            "temperature": dice.choice([0, 1]),
            "stream": stream,
        } | more

    async def _same_question(self, size: int) -> None:
        prompt = TEXT * size
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "cache_prompt": False}
        status, text = await self._ask(json.dumps(body).encode())
        answer = json.loads(text)["choices"][0]["text"] if status == 200 else f"{status}"
        known = self._known.setdefault(prompt, answer)
        if answer == known:
            self.told["answered"] += 1
        else:
            self._not_answered(f"{answer!r}, not {known!r}")

    async def _hostile(self) -> None:
        while True:
            if self._dice.random() < 0.5:
                status, _ = await self._ask(self._dice.choice(REFUSED))
                self.told["refused" if 400 <= status < 500 else f"hostile_{status}"] += 1
            else:
                await self._leave()
                self.told["left"] += 1
            await asyncio.sleep(self._dice.random())

    async def _leave(self) -> None:
        body = {"prompt": TEXT * self._dice.choice(SIZES), "max_tokens": 1000, "n": self._dice.choice([1, 4])}
        raw = self._raw(json.dumps(body | {"stream": True}).encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(raw[: self._dice.choice([20, len(raw) - 9, len(raw), len(raw)])])
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(200), 2 * self._dice.random())
        writer.close()

    async def _ask(self, body: bytes, path: str = "/v1/completions") -> tuple[int, str]:
        """→ status and body."""
        return await self._exchange(self._raw(body, path))

    def _raw(self, body: bytes, path: str = "/v1/completions") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    async def _exchange(self, raw: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with contextlib.suppress(ConnectionError):  # a body that is refused unread
                writer.write(raw)
                await writer.drain()
            answer = (await reader.read()).decode("utf-8", "replace")
        except ConnectionError:
            answer = ""
        finally:
            writer.close()
        head, _, text = answer.partition("\r\n\r\n")
        return int(head.split()[1]) if head else 0, text

    async def _memory(self) -> float:
        _, text = await self._exchange(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        found = re.search(r"^h2o_resident_memory_bytes (\S+)", text, re.MULTILINE)
        assert found, "the server tells of its memory"
        return round(float(found[1]) / 2**20, 1)


class Served:
    """The server that a command line starts."""

    def __init__(self, command: str, port: int) -> None:
        self._command, self._port = shlex.split(command), port
        self.start()

    def start(self) -> None:
        """Returns when it is ready."""
        self.process = subprocess.Popen(self._command)
        while True:
            if self.process.poll() is not None:
                sys.exit(f"the server has ended with {self.process.returncode}")
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{self._port}/health"):
                return
            time.sleep(0.2)

    def hang_up(self) -> None:
        """What a terminal does that is closed."""
        self.process.send_signal(signal.SIGHUP)

    def ended(self) -> None:
        if (code := self.process.wait()) != 128 + signal.SIGHUP:
            sys.exit(f"the server has ended with {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--minutes", type=int, default=10, help="memory is judged from 5 on")
    parser.add_argument("--plain", type=int, default=6, help="clients")
    parser.add_argument("--hostile", type=int, default=3, help="clients")
    parser.add_argument("--most-growth", type=float, default=0.02, help="share of memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", help="command line of the server, with --port and --cache-dir")
    flags = parser.parse_args()
    crowd = Crowd(flags.port, flags.seed)
    served = Served(flags.serve, flags.port) if flags.serve else None
    hang_up = served.hang_up if served else None
    looks = asyncio.run(crowd.run(flags.plain, flags.hostile, flags.minutes, hang_up))
    went_on = again(crowd, served) if served else 1.0
    for wrong in crowd.wrong[:5]:
        print(wrong, file=sys.stderr)
    growth = (
        min(looks[-3:]) / max(looks[1:4]) - 1 if flags.minutes >= 5 else 0.0
    )  # it settles in the first ones
    print(json.dumps({"growth": round(growth, 4), "went_on": went_on, **crowd.told}))
    if crowd.wrong or growth > flags.most_growth or went_on < LEAST_WENT_ON:
        sys.exit("the server did not stay what it was")


def again(crowd: Crowd, served: Served) -> float:
    """Start the server again after its end → the share of conversations that went on."""
    served.ended()
    served.start()
    asyncio.run(crowd.ask_alone())
    went_on = round(asyncio.run(crowd.go_on()), 3)
    served.hang_up()
    served.ended()
    return went_on


if __name__ == "__main__":
    main()
