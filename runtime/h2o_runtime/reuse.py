"""How much of the cache a new prompt can keep.

A prompt is always given whole; what the cache already holds of it is found by comparing tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from h2o_runtime.cache import IntArray, KVCache
from h2o_runtime.config import PrefillConfig


class Prefix(Enum):
    """What the tokens before a prefill are to it. Explicit, because row counts cannot tell."""

    NONE = "none"  # the cache starts empty
    BOUNDARY = "boundary"  # a chunk boundary of a fresh run: go on exactly as that run would have
    HISTORY = "history"  # a finished conversation that goes on
    EXACT = "exact"  # full attention: any cached token is what a fresh run would compute


@dataclass(frozen=True)
class Reuse:
    """Keep `length` cached tokens, in the role `prefix`."""

    prefix: Prefix
    length: int


@dataclass(frozen=True)
class Provenance:
    """How the cache's content came about.

    config    the configuration it was computed with; None when the cache is empty
    prompt    length of the fresh part: one uninterrupted grid of chunks from position 0
    sparse    rows of the fresh part before its dense tail: they equal those of any prompt that shares them
    complete  false after a cancelled prefill, when only a chunk boundary can be gone on from
    """

    config: PrefillConfig | None = None
    prompt: int = 0
    sparse: int = 0
    complete: bool = True

    @classmethod
    def fresh(cls, config: PrefillConfig, prompt: int) -> Provenance:
        tail = config.dense_tail if prompt > config.chunk_size else 0
        return cls(config, prompt, max(prompt - tail, 0))

    @classmethod
    def interrupted(cls, config: PrefillConfig, boundary: int) -> Provenance:
        """A run that was cancelled after it had gone back to `boundary`; its memory sets are still there."""
        return cls(config, boundary + 1, boundary, complete=False)


def same_arithmetic(a: PrefillConfig | None, b: PrefillConfig) -> bool:
    """Whether two configurations give the same numbers: the batch size never changes a result."""
    names = [field.name for field in fields(b) if field.name != "batch_size"]
    return a is not None and all(getattr(a, name) == getattr(b, name) for name in names)


def plan_reuse(cache: KVCache, tokens: IntArray, config: PrefillConfig, origin: Provenance) -> Reuse:
    """What to keep for the prompt `tokens` [N] under `config`. At least one token is left to run."""
    nothing = Reuse(Prefix.NONE, 0)
    if not cache.length or not same_arithmetic(origin.config, config):
        return nothing
    shared = cache.shared_prefix(tokens)
    if config.policy == "full":
        kept = min(shared, len(tokens) - 1)
        return Reuse(Prefix.EXACT, kept) if kept else nothing
    if shared == cache.length < len(tokens) and origin.complete:
        return Reuse(Prefix.HISTORY, shared)
    # A boundary's memory exists where the fresh run went on past it, and no kept row may lie in a dense tail:
    # not in that of the cached prompt, nor in that of the new one.
    sparse = min(origin.sparse, Provenance.fresh(config, len(tokens)).sparse)
    limit = min(shared, sparse, origin.prompt - 1, len(tokens) - 1)
    boundary = limit // config.chunk_size * config.chunk_size
    return Reuse(Prefix.BOUNDARY, boundary) if boundary else nothing
