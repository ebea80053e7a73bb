"""A small random model with latent attention: python -m bench.gpu_check.latent_model TOKENIZER FOLDER

Latents are as wide as DeepSeek's, 512 elements and 64 rotated ones; everything else is as small as possible.
Needs transformers and torch. TOKENIZER is a checkpoint whose tokenizer it takes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer


def write(tokenizer: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "deepseek_v2",
        vocab_size=Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        first_k_dense_replace=2,  # no experts
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
        initializer_range=0.1,  # so that no two tokens are nearly equally likely
    )
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
