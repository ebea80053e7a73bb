"""Two h2o-serve on one --cache-dir, as processes of their own: what the second one saves, and what kill -9 leaves.

    python -m bench.serve.shared_folder BUNDLE --text FILE

first      the document is read by one server, and another question about it is asked of the other one
kills      a server is killed again and again while it writes; what the next one answers is compared with a server
           that remembers nothing
alternate  fifty requests of five growing conversations go to the two servers in turn; every answer is compared
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

Messages = list[dict[str, str]]
TALKS, TURNS = 5, 10
TICKS = os.sysconf("SC_CLK_TCK")  # of /proc, a second


class Server:
    """A running h2o-serve of one thread."""

    def __init__(self, bundle: Path, *flags: object) -> None:
        command = [sys.executable, "-m", "h2o_cli.serve", bundle, "--port", 0, "-t", 1, *flags]
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        told = (re.search(r"listening on (http://\S+)", line) for line in self.process.stderr)
        self.url = next(found[1] for found in told if found)
        next(line for line in self.process.stderr if "ready: " in line)

    def chat(self, messages: Messages, policy: str, tokens: int = 1) -> tuple[float, dict[str, Any]]:
        """Seconds until the whole answer is there, and the answer. Of one token they are the TTFT."""
        prefill = {"prefill": {"policy": policy}} if policy else {}
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0, **prefill}
        headers = {"Content-Type": "application/json"}
        began = time.perf_counter()
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            answer: dict[str, Any] = json.load(response)
        return time.perf_counter() - began, answer

    def processor(self) -> float:
        """Seconds of processor time until now, which other programs on the machine change little."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def servers(count: int, bundle: Path, *flags: object) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers_of = []
        for _ in range(count):
            servers_of.append(Server(bundle, *flags))
            stack.callback(servers_of[-1].kill)
        yield servers_of


def shared(folder: Path) -> tuple[object, ...]:
    return "--cache-dir", folder, "--cache-dir-shared"


def written(folder: Path, count: int) -> None:
    """Wait until so many sessions are there."""
    end = time.monotonic() + 60
    while len(list(folder.glob("*.session"))) < count:
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.02)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def about(document: str, question: str) -> Messages:
    return [{"role": "user", "content": f"{document}\n\n{question}"}]


def first(bundle: Path, document: str, policy: str, rounds: int, flags: tuple[object, ...]) -> None:
    """The second server answers about what the first one has read."""
    shares, work = [], []
    for number in range(rounds):
        text = f"{number}. {document}"
        with (
            tempfile.TemporaryDirectory() as name,
            servers(2, bundle, *shared(Path(name)), *flags) as (one, other),
        ):
            for server in (one, other):  # what a server's very first request costs is not the document's
                server.chat(about("Hello.", "Who?"), policy)
            began = one.processor()
            read, answer = one.chat(about(text, "What is it about?"), policy)
            used = one.processor() - began
            written(Path(name), 1)
            time.sleep(1)
            began = other.processor()
            again, second = other.chat(about(text, "Who wrote it?"), policy)
            used_again = other.processor() - began
        shares.append(again / read)
        work.append(used_again / used)
        print(
            f"{policy or 'default':8} {answer['usage']['prompt_tokens']:,} tokens: read in {read:.2f} s; on the "
            f"second server {again:.3f} s, {cached(second):,} cached: {again / read:.1%}; of processor time "
            f"{used:.2f} and {used_again:.2f} s: {used_again / used:.1%}",
            flush=True,
        )
    print(
        f"{policy or 'default':8} median {median(shares):.1%}; of processor time {median(work):.1%}",
        flush=True,
    )


def kills(bundle: Path, document: str, policy: str, count: int, flags: tuple[object, ...]) -> None:
    """kill -9 at some moment of the writing, `count` times on one folder."""
    draw = random.Random(1)
    partials = right = 0
    with tempfile.TemporaryDirectory() as name, servers(1, bundle, *flags) as (fresh,):
        folder = Path(name)
        for number in range(count):
            text = about(f"{number}. {document}", "What is it about?")
            victim = Server(bundle, *shared(folder), *flags)
            victim.chat(text, policy)
            time.sleep(draw.uniform(0, 0.25))
            victim.kill()
            partials += len(list(folder.glob(".*.partial")))
            expected = text_of(fresh.chat(text, policy, 8)[1])
            with servers(1, bundle, *shared(folder), *flags) as (next_one,):
                right += text_of(next_one.chat(text, policy, 8)[1]) == expected
    print(f"kill -9: {count} times, {partials} half files, {right} of {count} answers as a fresh server's")
    assert right == count


def alternate(bundle: Path, document: str, policy: str, flags: tuple[object, ...]) -> None:
    """Every answer of fifty requests as that of a server that remembers nothing."""
    with (
        tempfile.TemporaryDirectory() as name,
        servers(2, bundle, *shared(Path(name)), *flags) as both,
        servers(1, bundle, *flags) as (fresh,),
    ):
        talks = [about(f"{number}. {document}", "What is it about?") for number in range(TALKS)]
        same = hits = 0
        for request in range(TALKS * TURNS):
            talk = talks[request % TALKS]
            _, answer = both[request % 2].chat(talk, policy, 8)
            _, expected = fresh.chat(talk, policy, 8)
            fresh.chat(about("Hello.", str(request)), policy)  # it has no other session to go on from
            same += text_of(answer) == text_of(expected)
            hits += cached(answer) > answer["usage"]["prompt_tokens"] // 2
            talk += [
                {"role": "assistant", "content": text_of(answer)},
                {"role": "user", "content": f"And number {request}?"},
            ]
            time.sleep(0.3)  # until it is written
    print(
        f"alternate: {same} of {TALKS * TURNS} answers as a fresh server's; {hits} had most of a prompt cached"
    )
    assert same == TALKS * TURNS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--characters", type=int, default=30000, help="of the text, for the first part")
    parser.add_argument(
        "--policies", default="full,", help="with commas between; an empty one is the default rule"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--flags", default="", help="more flags of h2o-serve")
    given = parser.parse_args()
    text, flags = given.text.read_text(), tuple(given.flags.split())
    for policy in given.policies.split(","):
        first(given.bundle, text[: given.characters], policy, given.rounds, flags)
    kills(given.bundle, text[: given.characters // 8], "full", given.kills, flags)
    alternate(given.bundle, text[: given.characters // 20], "full", flags)


if __name__ == "__main__":
    main()
