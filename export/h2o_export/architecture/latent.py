"""Sizes of multi-head latent attention (DeepSeek-AI, 2024), from `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.kind_sizes import KindSizes
from h2o_export.architecture.values import integer
from h2o_runtime.errors import CheckpointError

NORM_EPS = 1e-6  # of the norms of latents, whatever rms_norm_eps is


@dataclass(frozen=True)
class LatentConfig(KindSizes):
    """Keys and values of all heads are computed from one latent per token, and all heads share one rotated
    key.

    rank         r, elements of the latent
    nope_size    elements of a head's query and key that are not rotated
    rope_size    elements that are
    value_size   elements of a head's value
    query_rank   of the low-rank step that makes queries; None: there is none
    pairs_in     whether RoPE turns neighbours, rather than halves against each other
    pairs_out    whether they are neighbours afterwards
    """

    rank: int
    nope_size: int
    rope_size: int
    value_size: int
    query_rank: int | None
    pairs_in: bool
    pairs_out: bool

    @classmethod
    def read(cls, raw: dict[str, Any], pairs_stay: bool) -> LatentConfig:
        """Of a parsed `config.json`; `pairs_stay`: neighbours are turned, and stay neighbours, whatever it says.

        Raises CheckpointError.
        """
        pairs = pairs_stay or bool(raw["rope_interleave"])
        rope_size = integer(raw, "qk_rope_head_dim")
        if rope_size % 2:
            raise CheckpointError(f"config.json: qk_rope_head_dim must be even, but is {rope_size}")
        return cls(
            rank=integer(raw, "kv_lora_rank"),
            nope_size=integer(raw, "qk_nope_head_dim"),
            rope_size=rope_size,
            value_size=integer(raw, "v_head_dim"),
            query_rank=None if raw["q_lora_rank"] is None else integer(raw, "q_lora_rank"),
            pairs_in=pairs,
            pairs_out=pairs_stay,
        )

    @property
    def rotated_size(self) -> int:
        return self.rope_size

    @property
    def query_size(self) -> int:
        """Elements of a head's query."""
        return self.nope_size + self.rope_size

    @property
    def row_size(self) -> int:
        """Elements of a token in the cache."""
        return self.rank + self.rope_size

    def heads(self, raw: dict[str, Any]) -> tuple[int, int, int]:
        """Query heads, heads of expanded keys and values, and the size of a head's query."""
        heads = integer(raw, "num_attention_heads")
        shared = integer(raw, "num_key_value_heads", heads)
        if shared != heads:
            raise CheckpointError(
                f"config.json: num_key_value_heads is {shared}, but latent attention needs one for each of its "
                f"{heads} heads; the file is damaged"
            )
        return heads, heads, self.query_size
