"""What a running stream and a long prompt cost each other in slots.

    python -m bench.serve.slots BUNDLE [--tokens 8000] [--threads 2] [--rounds 3] [--cache paged]

In turns, in one process: the prompt at once, in pieces, and in pieces beside a stream. Seconds to the prompt's
first token, the longest turn of reading, and the stream's longest wait for a token; how many answers there are.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from h2o_runtime.answers.completion import Completion, TextDelta
from h2o_runtime.answers.events import Prefilled
from h2o_runtime.answers.request import Prompt, Request
from h2o_runtime.answers.sampling import Sampling
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.execution.watch import Watch
from h2o_runtime.generator import Generator
from h2o_runtime.sessions.pool import SharedPrompt
from h2o_runtime.text_model import TextModel
from h2o_server.scheduling.scheduler import Scheduler


@dataclass
class Task:
    """Notes when its prompt was read and when text came."""

    request: Request
    left: bool = False
    shared: SharedPrompt | None = None
    began_at: float = 0.0
    read_at: float = 0.0
    came_at: list[float] = field(default_factory=list)
    completion: Completion | None = None

    @property
    def watch(self) -> Watch:
        return Watch(cancelled=lambda: self.left)

    def began(self, slot: int, generator: Generator) -> None:
        self.began_at = time.perf_counter()

    def event(self, event: object) -> None:
        if isinstance(event, Prefilled):
            self.read_at = time.perf_counter()
        elif isinstance(event, TextDelta):
            self.came_at.append(time.perf_counter())
        elif isinstance(event, Completion):
            self.completion = event

    def ended(self, error: Exception | None) -> None:
        assert error is None, error


def request(ids: list[int], tokens: int) -> Request:
    greedy = Sampling(temperature=0.0)
    return Request(Prompt(tuple(ids)), tokens, sampling=greedy, ignore_eos=True, reuse=False, speculate="off")


def read(model: TextModel, ids: list[int], piece: int | None, stream: list[int] | None) -> dict[str, object]:
    scheduler, beside, turns = Scheduler(model, piece), None, []
    if stream is not None:
        beside = Task(request(stream, 400))
        scheduler.start(beside)
        while len(beside.came_at) < 20:
            scheduler.turn()
    prompt = Task(request(ids, 8))
    scheduler.start(prompt)
    while not prompt.read_at:
        begin = time.perf_counter()
        scheduler.turn()
        turns.append(time.perf_counter() - begin)
    while prompt.completion is None:
        scheduler.turn()
    found: dict[str, object] = {
        "ttft": prompt.read_at - prompt.began_at,
        "turn": max(turns),
        "text": prompt.completion.text,
    }
    if beside is not None:
        beside.left = True
        while not scheduler.idle:
            scheduler.turn()
        found["gap"] = max(b - a for a, b in zip(beside.came_at, beside.came_at[1:], strict=False))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--piece", type=int, default=1024)
    parser.add_argument("--cache", choices=["contiguous", "paged"], default="paged")
    flags = parser.parse_args()
    cache = Paged() if flags.cache == "paged" else Contiguous()
    settings = {"context": flags.tokens + 64, "threads": flags.threads, "device": "cpu"}
    with TextModel.load(flags.bundle, cache=cache, slots=2, **settings) as model:
        pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
        text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
        ids = model.tokenizer.encode(text)[: flags.tokens]
        found: dict[str, list[dict[str, object]]] = {}
        for _ in range(flags.rounds):
            for name, piece, stream in (
                ("at once", None, None),
                ("in pieces", flags.piece, None),
                ("beside a stream", flags.piece, ids[500:600]),
            ):
                found.setdefault(name, []).append(read(model, ids, piece, stream))
        least = {
            name: {key: min(run[key] for run in runs) for key in runs[0] if key != "text"}  # type: ignore[type-var]
            for name, runs in found.items()
        }
        texts = {run["text"] for runs in found.values() for run in runs}
        print(json.dumps({**least, "answers": len(texts)}, indent=2))


if __name__ == "__main__":
    main()
