"""How a prompt is prefilled: the public `PrefillConfig` and the checks that keep it sound."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from h2o_runtime.errors import ConfigError

_MOST = 2**31 - 1  # memory sets hold positions as int32


@dataclass(frozen=True)
class PrefillConfig:
    """Configuration of a prefill. All sizes are tokens. Raises ConfigError for values that contradict.

    policy        "h2o": chunked sparse prefill; "full": causal attention to everything
    chunk_size    S, the unit of the block-sparse pattern
    batch_size    B, most tokens in one call of a dense graph; never changes a result
    local         L, the end of each chunk that is always remembered
    heavy         H, earlier tokens remembered by score
    score         "colsum": summed attention probabilities; "window": votes of the chunk's last queries
    score_window  w, how many queries vote under "window"
    score_heads   one memory set for each "kv" head or for each "query" head
    sink          first tokens of the prompt that are always among the heavy hitters
    dense_tail    last tokens of the prompt that attend to everything, as decode does
    """

    policy: Literal["h2o", "full"] = "h2o"
    chunk_size: int = 1024
    batch_size: int = 4096
    local: int = 256
    heavy: int = 256
    score: Literal["colsum", "window"] = "colsum"
    score_window: int = 64
    score_heads: Literal["kv", "query"] = "kv"
    sink: int = 0
    dense_tail: int = 128

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choice("policy", ("h2o", "full"))
        self._check_choice("score", ("colsum", "window"))
        self._check_choice("score_heads", ("kv", "query"))
        self._check_least("chunk_size", 2)
        self._check_least("batch_size", 1)
        self._check_least("local", 1)
        for name in ("heavy", "sink", "dense_tail"):
            self._check_least(name, 0)
        self._check_most()
        if self.policy == "h2o":
            self._check_sizes()

    @property
    def memory(self) -> int:
        """M = L + H, the size of a memory set."""
        return self.local + self.heavy

    def _check_sizes(self) -> None:
        if self.memory >= self.chunk_size:
            raise ConfigError(
                f"local + heavy is {self.local} + {self.heavy} = {self.memory}, which must be below chunk_size "
                f"({self.chunk_size}): lower one of them or raise the chunk size",
                field="heavy",
            )
        if self.chunk_size > self.batch_size:
            raise ConfigError(
                f"chunk_size ({self.chunk_size}) must not exceed batch_size ({self.batch_size}): "
                "lower the chunk size or raise the batch size",
                field="chunk_size",
            )
        if self.sink > self.heavy:
            raise ConfigError(
                f"sink ({self.sink}) must not exceed heavy ({self.heavy}): sinks are kept among the heavy hitters",
                field="sink",
            )
        if self.score == "window" and not 1 <= self.score_window <= self.local:
            raise ConfigError(
                f"score_window ({self.score_window}) must be from 1 to local ({self.local})",
                field="score_window",
            )

    def _check_most(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value > _MOST:
                raise ConfigError(f"{field.name} must be at most {_MOST}, but is {value}", field=field.name)

    def _check_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int) and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(f"{field.name} must be an integer, but is {value!r}", field=field.name)

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, but is {value!r}", field=name)

    def _check_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, but is {value}", field=name)
