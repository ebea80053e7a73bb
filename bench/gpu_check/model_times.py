"""Times of a whole random model on ONNX Runtime, with transformers beside it.

    python -m bench.gpu_check.model_times TOKENIZER FOLDER ROWS [PART ...]

The model has Llama-3.2-1B's shape and float16. FOLDER gets the checkpoint and bundles with float16, int8 and int4
weights, unless it has them; the tokenizer is that of the checkpoint TOKENIZER. Then each part runs in a process of
its own, so that none stops another: `float16`, `int8` and `int4`, a prompt, decode and steps of 1 to 16 rows with
these weights; `prefill`, time to first token by policy and length; `transformers`. One row per time is appended to
ROWS. Exit code 1: a part failed; 77: none can run here. The last line says why.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu_check.latent_model import TOKENIZER_FILES
from bench.gpu_check.model_rows import one_by_one, operator_of, steps
from bench.gpu_check.prefill_times import POLICIES
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE

import h2o_plugins
from h2o_runtime import Generator
from h2o_runtime.errors import H2OError
from h2o_runtime.names import DeviceName
from h2o_runtime.policies.prefill import Full, PrefillPolicy

WEIGHTS = {  # not calibrated: a random model has no texts that it knows
    "float16": (),
    "int8": ("--weights", "int8 calibrate=none"),
    "int4": ("--weights", "int4 calibrate=none"),
}
LLAMA: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@dataclass(frozen=True)
class Sizes:
    """lengths  of prompts, by policy
    several  up to so many tokens a time is the median of five
    long     above so many tokens only the policies `of_long` are timed
    decode   cached tokens of decode, by weights; the first is the length of the prompt that is timed, too
    tokens   generated behind them
    shape    of the checkpoint, in transformers' terms
    """

    device: DeviceName = "cuda"
    lengths: tuple[int, ...] = (1024, 4096, 8192, 16384, 32768, 65536, 131072)
    several: int = 16384
    long: int = 32768
    of_long: tuple[str, ...] = ("full", "default", "window")
    decode: tuple[int, ...] = (4096, 32768)
    tokens: int = 40
    shape: dict[str, Any] = field(default_factory=lambda: LLAMA)

    def milliseconds(self, work: Callable[[], Any], n: int) -> float:
        """Of a warm run over n tokens."""
        times = []
        for _ in range(6 if n <= self.several else 2):
            begin = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times[1:])


def write(sizes: Sizes, tokenizer: Path, folder: Path) -> None:
    """The checkpoint is whole, or the folder is not there: a time limit may end this process."""
    import torch  # here, for the processes of other parts do without
    from transformers import AutoConfig, AutoModelForCausalLM

    places = 2 * sizes.lengths[-1]
    config = AutoConfig.for_model(
        "llama", **sizes.shape, max_position_embeddings=places, tie_word_embeddings=True
    )
    torch.manual_seed(7)
    with torch.device(sizes.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)  # type: ignore[no-untyped-call]
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    model.save_pretrained(unfinished)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, unfinished / name)
    unfinished.replace(folder)


def export(sizes: Sizes, checkpoint: Path, bundle: Path, weights: str) -> None:
    from h2o_cli.export import main as command

    fixed = ("--no-validate", "--dtype", "float16", "--ctx-size", str(sizes.lengths[-1] + sizes.tokens))
    command([str(checkpoint), "-o", str(bundle), *fixed, *WEIGHTS[weights]], standalone_mode=False)


def by_weights(sizes: Sizes, folder: Path, weights: str) -> Iterator[dict[str, Any]]:
    """A prompt under full attention and greedy tokens behind it; then steps of several rows, whose error is from
    steps of one row.
    """
    with _loaded(sizes, folder, weights, max(sizes.decode)) as generator:
        for n in sizes.decode:
            ids = _random_ids(generator, n)
            row: dict[str, Any] = {"weights": weights, "n": n, "operator": operator_of(generator)}
            if n == sizes.decode[0]:
                row["first_token_ms"] = sizes.milliseconds(partial(_read, generator, ids, Full()), n)
            else:
                _read(generator, ids, Full())
            yield row | _decoded(generator, sizes.tokens)
            if n == sizes.decode[0]:
                alone = one_by_one(generator, ids)
                for count, milliseconds, logits in steps(generator, ids):
                    error = np.abs(logits - alone[:count]).max() / np.abs(alone).max()
                    yield {
                        "weights": weights,
                        "n": n,
                        "rows": count,
                        "ms": milliseconds,
                        "error": float(error),
                    }


def _decoded(generator: Generator, count: int) -> dict[str, Any]:
    """Steps are recorded at first: their usual time is the median of the second half."""
    tokens, times = [5], []
    for _ in range(count):
        begin = time.perf_counter()
        tokens.append(int(generator.decode(tokens[-1]).argmax()))
        times.append(time.perf_counter() - begin)
    return {
        "tokens_per_s": 1 / statistics.median(times[count // 2 :]),
        "first_tokens_per_s": count / sum(times),
        "tokens": tokens[1:],
    }


def by_policy(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    with _loaded(sizes, folder, "float16", sizes.lengths[-1]) as generator:
        for n in sizes.lengths:
            ids = _random_ids(generator, n)
            for name, policy in POLICIES.items():
                if n <= sizes.long or name in sizes.of_long:
                    taken = sizes.milliseconds(partial(_read, generator, ids, policy), n)
                    yield {"model": name, "n": n, "first_token_ms": taken}


def of_transformers(sizes: Sizes, folder: Path) -> Iterator[dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder / "checkpoint", dtype=torch.float16)
    model.to(sizes.device)
    with torch.inference_mode():
        for n in sizes.lengths:
            ids = torch.randint(3, sizes.shape["vocab_size"], (1, n), device=sizes.device)

            def prompt(ids: Any = ids) -> None:
                model(ids, use_cache=True, logits_to_keep=1).logits.argmax().item()

            yield {"model": "transformers", "n": n, "first_token_ms": sizes.milliseconds(prompt, n)}


def _loaded(sizes: Sizes, folder: Path, weights: str, n: int) -> Generator:
    bundle, context = folder / f"bundle-{weights}", n + sizes.tokens
    return Generator.load(bundle, backend="onnxruntime", context=context, device=sizes.device)


def _random_ids(generator: Generator, n: int) -> Any:
    return np.random.default_rng(n).integers(3, generator.model.vocab_size, n)


def _read(generator: Generator, ids: Any, policy: PrefillPolicy[Any]) -> None:
    generator.reset()
    generator.prefill(ids, policy)


PARTS = (*WEIGHTS, "prefill", "transformers")


def part(sizes: Sizes, folder: Path, rows: Path, name: str) -> None:
    if name in WEIGHTS:
        times = by_weights(sizes, folder, name)
    else:
        times = by_policy(sizes, folder) if name == "prefill" else of_transformers(sizes, folder)
    for row in times:
        print(row, flush=True)
        table = "model_rows" if "rows" in row else "weights" if name in WEIGHTS else "model"
        append(rows, table, row)


# Processes


def _child(native: list[str], work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    h2o_plugins.__path__[:] = native
    try:
        work(*arguments)
    except H2OError as error:
        print(error, flush=True)
        sys.exit(NOT_HERE)


def start(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = get_context("spawn").Process(
        target=_child, args=(list(h2o_plugins.__path__), work, arguments), name=work.__name__
    )
    process.start()
    return process


def make(sizes: Sizes, tokenizer: Path, folder: Path) -> None:
    """The checkpoint, then all bundles at once: timings begin when no other work is left."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        start(write, sizes, tokenizer, checkpoint).join()
    bundles = {weights: folder / f"bundle-{weights}" for weights in WEIGHTS}
    exports = [
        start(export, sizes, checkpoint, bundle, weights)
        for weights, bundle in bundles.items()
        if not (bundle / "manifest.json").exists()
    ]
    for one in exports:
        one.join()


def measure(sizes: Sizes, tokenizer: Path, folder: Path, rows: Path, names: Sequence[str] = PARTS) -> int:
    """→ the exit code."""
    make(sizes, tokenizer, folder)
    codes: dict[str, int | None] = {}
    for name in names:
        process = start(part, sizes, folder, rows, name)
        process.join()
        codes[name] = process.exitcode
    if all(code == NOT_HERE for code in codes.values()):
        return NOT_HERE
    failed = [f"{name} (exit code {code})" for name, code in codes.items() if code]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return int(bool(failed))


def main() -> int:
    tokenizer, folder, rows = map(Path, sys.argv[1:4])
    return measure(Sizes(), tokenizer, folder, rows, sys.argv[4:] or PARTS)


if __name__ == "__main__":
    sys.exit(main())
