"""A coding agent's session of twelve turns, on several servers in turns: time to first token, and tokens read.

    h2o-serve BUNDLE --port 8080 --ctx-size 32768 --slots 2        # and any other server of OpenAI's chat API
    python -m bench.serve.agent_turns ours=http://127.0.0.1:8080 peer=http://127.0.0.1:8081 --text FILE [--csv FILE]

Instructions of some 12,000 tokens come first, as agents send them. Each turn then adds what the model answered (a
fixed text, so that all servers get the same prompt) and the result of a function, cut from the texts. A server
answers one token: the time of the answer is the time to first token. Three variants change what came before:

date    the last line of the instructions is another one from the seventh turn on
drop    from the seventh turn on the first result is a short sentence, as a client writes that makes room
side    after every turn another conversation asks for a title
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Messages = list[dict[str, str]]
TURNS, CHANGED_AT = 12, 7
VARIANTS = ("plain", "date", "drop", "side")
QUESTION = "Find out why the server stops when a client leaves, and mend it."
SIDE = "Write a title of at most six words for a conversation that begins with this question: "


@dataclass(frozen=True)
class Answer:
    seconds: float
    prompt_tokens: int
    cached_tokens: int


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as response:
        return json.load(response)


def ask(url: str, messages: Messages) -> Answer:
    body = {"model": "local", "messages": messages, "max_tokens": 1, "temperature": 0}
    began = time.perf_counter()
    usage = post(f"{url}/v1/chat/completions", body)["usage"]
    seconds = time.perf_counter() - began
    details = usage.get("prompt_tokens_details") or {}
    return Answer(seconds, usage["prompt_tokens"], details.get("cached_tokens", 0))


def beginning(url: str, text: str, tokens: int) -> str:
    """The text's first characters that have so many tokens, by the server's tokenizer, to 1 percent."""
    characters = 4 * tokens
    for _ in range(8):
        count = len(post(f"{url}/tokenize", {"content": text[:characters]})["tokens"])
        if abs(count - tokens) < tokens / 100:
            return text[:characters]
        if count < tokens and characters >= len(text):
            sys.exit(f"--text has {count:,} tokens; {tokens:,} are needed")
        characters = characters * tokens // count
    return text[:characters]


def turns(variant: str, instructions: str, results: list[str]) -> Iterator[Messages]:
    """The messages of each turn."""
    for turn in range(TURNS):
        late = turn + 1 >= CHANGED_AT
        day = "Friday" if variant == "date" and late else "Thursday"
        messages = [{"role": "system", "content": f"{instructions}\n\nToday is {day}."}]
        messages.append({"role": "user", "content": QUESTION})
        for number, result in enumerate(results[:turn]):
            left_out = variant == "drop" and late and number == 0
            messages.append({"role": "assistant", "content": f"I read part {number} of the file now."})
            messages.append({"role": "user", "content": "The result was removed." if left_out else result})
        yield messages


def measure(
    servers: dict[str, str], variant: str, instructions: str, results: list[str]
) -> list[dict[str, Any]]:
    """All turns of one variant. Each turn is asked of every server before the next one begins."""
    rows = []
    for number, messages in enumerate(turns(variant, f"[{variant}] {instructions}", results), 1):
        for name, url in servers.items():
            answer = ask(url, messages)
            rows.append({"variant": variant, "turn": number, "server": name, **vars(answer)})
            print(
                f"{variant:6} turn {number:2} {name:10} {answer.seconds:7.2f} s  {answer.prompt_tokens:6,} tokens, "
                f"{answer.prompt_tokens - answer.cached_tokens:6,} of them read",
                flush=True,
            )
            if variant == "side":
                ask(url, [{"role": "user", "content": f"{SIDE}{QUESTION} ({number})"}])
    return rows


def summary(rows: list[dict[str, Any]], servers: dict[str, str]) -> Iterator[str]:
    first = next(iter(servers))
    for variant in dict.fromkeys(row["variant"] for row in rows):
        times = {
            name: [row["seconds"] for row in rows if (row["variant"], row["server"]) == (variant, name)]
            for name in servers
        }
        for name, seconds in times.items():
            rest, beside = sum(seconds[1:]), sum(times[first][1:])
            yield (
                f"{variant:6} {name:10} first turn {seconds[0]:7.2f} s ({seconds[0] / times[first][0]:.2f} of "
                f"{first}'s), turns 2 to {TURNS} {rest:7.2f} s ({rest / beside:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("servers", nargs="+", help="name=url")
    parser.add_argument("--text", type=Path, required=True, help="of at least 20,000 tokens")
    parser.add_argument("--tokens", type=int, default=12000, help="of the instructions")
    parser.add_argument("--result", type=int, default=400, help="tokens of each result")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="with commas between")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    servers = dict(server.split("=", 1) for server in given.servers)
    url, text = next(iter(servers.values())), given.text.read_text()
    instructions = beginning(url, text, given.tokens)
    part = len(instructions) * given.result // given.tokens
    rest = text[len(instructions) :]
    results = [rest[start : start + part] for start in range(0, part * TURNS, part)]
    for server in servers.values():  # what a server's very first request costs is not the session's
        ask(server, [{"role": "user", "content": "Hello."}])
    rows: list[dict[str, Any]] = []
    for variant in given.variants.split(","):
        rows += measure(servers, variant, instructions, results)
    print(*summary(rows, servers), sep="\n")
    if given.csv:
        with given.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
