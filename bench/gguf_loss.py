"""What a GGUF file loses here and by llama.cpp, against its own weights as floats.

    python -m bench.gguf_loss FILE.gguf BUNDLE TEXT [TEXT ...] --csv loss.csv

BUNDLE is an export of FILE. Some tokens of each text are predicted, each from all before it. llama.cpp takes part
where llama-cpp-python is installed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from h2o_export.checkpoints import open_checkpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.validation.perplexity import loss_of_perplexity, mean_loss
from h2o_runtime import Full, Generator
from h2o_runtime.schedule import Span
from h2o_runtime.text import Tokenizer

HEAD = 3000  # characters before the part that is read: titles, licences and imports
Texts = dict[str, list[int]]


@dataclass(frozen=True)
class Row:
    """loss: mean negative log-likelihood of a token; increase: of the perplexity, against the file's floats."""

    model: str
    text: str
    tokens: int
    reader: str
    loss: float
    increase: float


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", type=Path)
    flags = parser.parse_args(words)
    tokenizer = Tokenizer.load(flags.bundle)
    texts = {
        path.name: tokenizer.encode(path.read_text(errors="replace")[HEAD:])[: flags.tokens]
        for path in flags.texts
    }
    rows = list(measured(flags.file, flags.bundle, texts, flags.threads))
    if flags.csv:
        with flags.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, Row.__annotations__, lineterminator="\n")
            writer.writeheader()
            writer.writerows(vars(row) for row in rows)
    for reader in dict.fromkeys(row.reader for row in rows):
        found = [row.increase for row in rows if row.reader == reader]
        sys.stdout.write(f"{reader}: {mean(found):+.2%}, {min(found):+.2%} to {max(found):+.2%}\n")
    for name, place in {"file": [flags.file], "bundle": flags.bundle.rglob("*")}.items():
        size = sum(path.stat().st_size for path in place if path.is_file())
        sys.stdout.write(f"{name}: {size / 2**20:,.0f} MiB\n")


def measured(file: Path, bundle: Path, texts: Texts, threads: int) -> Iterator[Row]:
    torch.set_num_threads(threads)
    truth = dict(_floats(file, texts))
    readers = {"stored": _ours(bundle, texts, threads)}
    if importlib.util.find_spec("llama_cpp"):
        readers["llama.cpp"] = _llama_cpp(file, texts, threads)
    for reader, losses in readers.items():
        for text, loss in losses:
            increase = loss_of_perplexity(loss, truth[text])
            yield Row(file.stem, text, len(texts[text]), reader, loss, increase)


def _floats(file: Path, texts: Texts) -> Iterator[tuple[str, float]]:
    """By one layer in memory at a time, in float32."""
    checkpoint = open_checkpoint(str(file))
    model = StreamedModel(checkpoint, torch.float32)
    states = model.embed(list(texts.values()))
    for layer in range(checkpoint.config.layers):
        states = model.layer(layer, states)
    for (text, ids), state in zip(texts.items(), states, strict=True):

        def logits(span: Span, state: Tensor = state) -> Tensor:
            return model.logits(state[span.start : span.stop])

        with torch.inference_mode():
            yield text, mean_loss(logits, ids)


def _ours(bundle: Path, texts: Texts, threads: int) -> Iterator[tuple[str, float]]:
    context = max(map(len, texts.values()))
    with Generator.load(bundle, context=context, device="cpu", threads=threads) as generator:
        for text, ids in texts.items():
            yield text, -float(generator.logprobs(ids, Full()).mean())


def _llama_cpp(file: Path, texts: Texts, threads: int) -> Iterator[tuple[str, float]]:
    llama_cpp: Any = importlib.import_module("llama_cpp")
    context = max(map(len, texts.values()))
    settings = {"n_ctx": context, "n_batch": context, "n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(str(file), logits_all=True, verbose=False, **settings)
    for text, ids in texts.items():
        model.reset()
        model.eval(ids)
        yield text, mean_loss(lambda span: torch.from_numpy(model.scores[span.start : span.stop]), ids)


if __name__ == "__main__":
    main()
