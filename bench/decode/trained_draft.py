"""Trains a small model of Qwen3.5's shape with its draft layer, and compares decode with and without drafts.

    python -m bench.decode.trained_draft FOLDER [--steps 300] [--rounds 5] [--tokens 150] [--threads 1]

The model learns the beginning of the example's text nearly by heart, so that drafts are accepted. Its MLPs are then
widened with zeros: it computes the same, and a step reads as many weights as one of a larger model. FOLDER gets the
checkpoint and its bundle; a bundle that is there is measured again. Answers continue the text at three places, with
each drafter in turn, in one process; all must be equal, token for token. Prints milliseconds of processor time per
token (medians of the rounds), how many times as fast as without drafts, and drafted and accepted tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

from h2o_runtime import Generator, Sampling
from h2o_runtime.answers.events import Prefilled, TokenGenerated
from h2o_runtime.names import SPECULATIONS, Speculation
from h2o_runtime.policies.prefill import Full

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny-llama"
CHARACTERS, BATCH, LENGTH, PLACES, PROMPT = 8_000, 8, 64, 3, 60
RATE, INNER, LAYERS = 2e-3, 8192, 8
SAMPLINGS = {"greedy": Sampling(), "temperature 0.8": Sampling(temperature=0.8, seed=1)}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
LINEAR = {f"linear_{of}": size for of, size in (("num_key_heads", 4), ("num_value_heads", 4))}
SHAPE: dict[str, Any] = {
    **HEADS,
    **LINEAR,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


class Draft(nn.Module):
    """The draft layer, with the names of its tensors in checkpoints of Qwen3.5."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        norms = [Qwen3_5RMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)]
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norms
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, LAYERS - 1)])  # of full attention

    def forward(self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Embeddings of tokens, and hidden states of those before → what the head reads, all [B, n, D]."""
        both = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)
        out: Tensor = self.norm(self.layers[0](self.fc(torch.cat(both, dim=-1)), position_embeddings=angles))
        return out


def train(folder: Path, tokens: Tensor, vocab: int, steps: int) -> None:
    """Both losses together; writes a checkpoint."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(vocab_size=vocab, **SHAPE)
    model, draft = Qwen3_5ForCausalLM(config), Draft(config)
    parameters = [*model.parameters(), *draft.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    positions = torch.arange(LENGTH).expand(3, BATCH, LENGTH)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        starts = torch.randint(len(tokens) - LENGTH - 2, (BATCH,))
        rows = torch.stack([tokens[start : start + LENGTH + 2] for start in starts])
        hidden = model.model(rows[:, :-2]).last_hidden_state
        angles = model.model.rotary_emb(hidden, positions)
        drafted = draft(model.model.embed_tokens(rows[:, 1:-1]), hidden, angles)
        read = torch.cat((hidden, drafted), dim=1)
        wanted = torch.cat((rows[:, 1:-1], rows[:, 2:]), dim=1)
        loss = functional.cross_entropy(model.lm_head(read).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(json.dumps({"step": step, "loss": round(loss.item(), 3)}), flush=True)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"mtp.{name}": tensor for name, tensor in draft.state_dict().items()}
    more = INNER - SHAPE["intermediate_size"]
    for name, tensor in tensors.items():
        if ".mlp." in name:
            tensors[name] = functional.pad(tensor, (0, more) if "down" in name else (0, 0, 0, more))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    file = folder / "config.json"
    said = {**json.loads(file.read_text()), "intermediate_size": INNER, "mtp_num_hidden_layers": 1}
    file.write_text(json.dumps(said))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(EXAMPLE / name, folder / name)


def answer(
    generator: Generator, prompt: list[int], most: int, sampling: Sampling, by: Speculation
) -> tuple[list[int], float]:
    """Tokens, and seconds of processor time from the prompt's end on."""
    begin, tokens = 0.0, []
    for event in generator.generate(prompt, most, Full(), sampling, reuse=False, speculate=by):
        if isinstance(event, Prefilled):
            begin = time.process_time()
        elif isinstance(event, TokenGenerated):
            tokens.append(event.sampled.token)
    return tokens, time.process_time() - begin


def compare(generator: Generator, prompt: list[int], most: int, sampling: Sampling, rounds: int) -> None:
    """Prints a line for each drafter."""
    taken: dict[Speculation, list[float]] = {by: [] for by in SPECULATIONS}
    counts, answers = {}, set()
    for _ in range(rounds):
        for by, each in taken.items():
            tokens, seconds = answer(generator, prompt, most, sampling, by)
            answers.add(tuple(tokens))
            each.append(1e3 * seconds / len(tokens))
            counts[by] = generator.drafts
    if len(answers) > 1:
        sys.exit("answers differ")
    ms = {by: statistics.median(each) for by, each in taken.items()}
    for by, count in counts.items():
        row = {"by": by, "ms": round(ms[by], 2), "times": round(ms["off"] / ms[by], 2)}
        print(json.dumps(row | {"drafted": count.drafted, "accepted": count.accepted}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, default in (("steps", 300), ("rounds", 5), ("tokens", 150), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    flags = parser.parse_args()
    checkpoint, bundle = flags.folder / "checkpoint", flags.folder / "bundle"
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE)
    text = (EXAMPLE / "heldout.txt").read_text()[:CHARACTERS]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not bundle.exists():
        train(checkpoint, torch.tensor(ids), len(tokenizer), flags.steps)
        export = [sys.executable, "-m", "h2o_cli.export", checkpoint, "-o", bundle, "--weights", "int8"]
        subprocess.run(export, check=True)
    with Generator.load(
        bundle, context=1024, device="cpu", dense_form="native", threads=flags.threads
    ) as generator:
        for name, sampling in SAMPLINGS.items():
            for place in range(PLACES):
                start = place * (len(ids) - PROMPT - flags.tokens) // (PLACES - 1)
                print(json.dumps({"sampling": name, "token": start}), flush=True)
                compare(generator, ids[start : start + PROMPT], flags.tokens, sampling, flags.rounds)


if __name__ == "__main__":
    main()
