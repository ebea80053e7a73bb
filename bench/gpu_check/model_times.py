"""Times of a whole random model on ONNX Runtime, with transformers beside it.

    python -m bench.gpu_check.model_times TOKENIZER FOLDER ROWS

The model has Llama-3.2-1B's shape and float16. FOLDER gets the checkpoint and the bundle, unless it has them; the
tokenizer is that of the checkpoint TOKENIZER. Time to first token by policy and length, then decode behind some of
these. One row per time is appended to ROWS. Exit code 77: cannot run here, and the last line says why.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.gpu_check.latent_model import TOKENIZER_FILES
from bench.gpu_check.prefill_times import POLICIES
from bench.gpu_check.report import append
from bench.gpu_check.steps import NOT_HERE
from transformers import AutoConfig, AutoModelForCausalLM

from h2o_runtime import Generator
from h2o_runtime.errors import H2OError
from h2o_runtime.policies.prefill import PrefillPolicy

DEVICE: Any = "cuda"
LENGTHS = (1024, 4096, 8192, 16384, 32768, 65536)
DECODE, TOKENS = (4096, 32768), 64  # cached tokens, and tokens behind them
SEVERAL = 16384  # up to so many tokens a time is the median of five
SHAPE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def write(tokenizer: Path, folder: Path) -> None:
    places = 2 * LENGTHS[-1]
    config = AutoConfig.for_model("llama", **SHAPE, max_position_embeddings=places, tie_word_embeddings=True)
    torch.manual_seed(7)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)


def export(checkpoint: Path, bundle: Path) -> None:
    from h2o_cli.export import main as command

    sizes = ("--dtype", "float16", "--ctx-size", str(LENGTHS[-1] + TOKENS))
    command([str(checkpoint), "-o", str(bundle), "--no-validate", *sizes], standalone_mode=False)


def milliseconds(work: Callable[[], Any], n: int) -> float:
    """Of a warm run."""
    times = []
    for _ in range(6 if n <= SEVERAL else 2):
        begin = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])


def ours(bundle: Path) -> Iterator[dict[str, Any]]:
    policies: dict[str, PrefillPolicy[Any]] = {
        name: policy for name, policy in POLICIES.items() if name != "minference"
    }
    context = LENGTHS[-1] + TOKENS
    with Generator.load(bundle, backend="onnxruntime", context=context, device=DEVICE) as generator:
        rng = np.random.default_rng(5)
        for n in LENGTHS:
            ids = rng.integers(3, generator.model.vocab_size, n)
            for name, policy in policies.items():

                def prompt(ids: Any = ids, policy: PrefillPolicy[Any] = policy) -> None:
                    generator.reset()
                    generator.prefill(ids, policy)

                row: dict[str, Any] = {"model": name, "n": n, "first_token_ms": milliseconds(prompt, n)}
                if n in DECODE and name == "full":
                    row["token_ms"] = _token_ms(generator)
                yield row


def _token_ms(generator: Generator) -> float:
    """Of one more token: the median behind the prompt that was read last."""
    token, times = 5, []
    for _ in range(TOKENS):
        begin = time.perf_counter()
        token = int(generator.decode(token).argmax())
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[TOKENS // 2 :])  # the first ones are recorded


def theirs(checkpoint: Path) -> Iterator[dict[str, Any]]:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float16).to(DEVICE)
    with torch.inference_mode():
        for n in LENGTHS:
            ids = torch.randint(3, SHAPE["vocab_size"], (1, n), device=DEVICE)

            def prompt(ids: Any = ids) -> None:
                model(ids, use_cache=True, logits_to_keep=1).logits.argmax().item()

            yield {"model": "transformers", "n": n, "first_token_ms": milliseconds(prompt, n)}


def main() -> int:
    tokenizer, folder, rows = map(Path, sys.argv[1:])
    checkpoint, bundle = folder / "checkpoint", folder / "bundle"
    try:
        if not (checkpoint / "config.json").exists():
            write(tokenizer, checkpoint)
        if not (bundle / "manifest.json").exists():
            export(checkpoint, bundle)
        for times in (ours(bundle), theirs(checkpoint)):
            for row in times:
                print(row, flush=True)
                append(rows, "model", row)
    except H2OError as error:
        print(error)
        return NOT_HERE
    return 0


if __name__ == "__main__":
    sys.exit(main())
