"""Plain and hostile clients before a running h2o-serve for minutes: is everybody answered, and does memory stay?

    h2o-serve bundle --port 8080 --slots 4 --cache paged --cache-pool 64 &
    python -m bench.serve.endurance --port 8080 --minutes 10

Plain clients ask with prompts of all sizes, many of which begin alike; each must be answered. Each also has a
conversation. Some questions come again and again without the cache, and must have the answers that they got
alone. Hostile clients send what is refused, or leave somewhere on the way. Prints the server's memory after each
minute. Fails if a plain client is not answered, or if the least of the last three minutes exceeds the most of
minutes 2 to 4 by more than --most-growth.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
from collections import Counter
from typing import Any

TEXT = "The quick brown fox jumps over the lazy dog. "
SIZES = (1, 4, 15, 40, 100)  # sentences
TURNS = 6  # of a conversation
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

    async def run(self, plain: int, hostile: int, minutes: int) -> list[float]:
        """→ the server's memory after each minute, MiB."""
        for size in SIZES:  # while no other client asks
            await self._same_question(size)
        work = [self._plain() for _ in range(plain)] + [self._hostile() for _ in range(hostile)]
        clients = [asyncio.create_task(task) for task in work]
        looks = []
        for minute in range(1, minutes + 1):
            done, _ = await asyncio.wait(clients, timeout=60, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            looks.append(await self._memory())
            print(json.dumps({"minute": minute, "rss_mib": looks[-1], **self.told}), flush=True)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return looks

    async def _say(self, talk: list[dict[str, str]]) -> None:
        """A turn. The beginning is the conversation's own."""
        turn = {"role": "user", "content": f"{self._dice.randrange(10**9)}. {TEXT * 10}What is that number?"}
        body = {"messages": [*talk, turn], "max_tokens": 24, "temperature": 0}
        status, text = await self._ask(json.dumps(body).encode(), "/v1/chat/completions")
        if status != 200:
            self._not_answered(f"{status}: {text[-300:]}")
            return
        talk += [turn, {"role": "assistant", "content": json.loads(text)["choices"][0]["message"]["content"]}]
        self.told["answered"] += 1

    def _not_answered(self, wrong: str) -> None:
        self.told["not_answered"] += 1
        self.wrong.append(wrong)

    async def _plain(self) -> None:
        talk: list[dict[str, str]] = []
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--minutes", type=int, default=10, help="memory is judged from 5 on")
    parser.add_argument("--plain", type=int, default=6, help="clients")
    parser.add_argument("--hostile", type=int, default=3, help="clients")
    parser.add_argument("--most-growth", type=float, default=0.02, help="share of memory")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    crowd = Crowd(flags.port, flags.seed)
    looks = asyncio.run(crowd.run(flags.plain, flags.hostile, flags.minutes))
    for wrong in crowd.wrong[:5]:
        print(wrong, file=sys.stderr)
    # It settles in the first minutes.
    growth = min(looks[-3:]) / max(looks[1:4]) - 1 if flags.minutes >= 5 else 0.0
    print(json.dumps({"growth": round(growth, 4), **crowd.told}))
    if crowd.wrong or growth > flags.most_growth:
        sys.exit("the server did not stay what it was")


if __name__ == "__main__":
    main()
