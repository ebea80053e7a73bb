"""What the requests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _of_type(kind: type) -> Callable[[Any], Any]:
    """Literals compare with ==, and to Python 1 is True."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"Input should be {'a boolean' if kind is bool else 'an integer'}")
        return value

    return check


def _whole(value: Any) -> Any:
    """1.0 is an integer to JSON, and some languages write no other."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# The one value that can be honoured.
One = Annotated[Literal[1], BeforeValidator(_of_type(int)), BeforeValidator(_whole)]
Yes = Annotated[Literal[True], BeforeValidator(_of_type(bool))]
No = Annotated[Literal[False], BeforeValidator(_of_type(bool))]

WHOLE = BeforeValidator(_whole)
Count = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
Real = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class Strict(BaseModel):
    """No coercion, and no unknown parameter: what is not honoured is refused, not ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: No | None = None


class Prefill(Strict):
    """Overrides of the server's prefill configuration; see the flags of h2o-run."""

    policy: Literal["h2o", "full"] | None = None
    chunk_size: Count | None = None
    batch_size: Count | None = None
    local: Count | None = None
    heavy: Count | None = None
    score: Literal["colsum", "window"] | None = None
    score_window: Count | None = None
    score_heads: Literal["kv", "query"] | None = None
    sink: Count | None = None
    dense_tail: Count | None = None


class Generation(Strict):
    """What both kinds of completion take. None stands for the default everywhere."""

    model: str | None = Field(None, max_length=1000, description="Any name: there is one model.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: One | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Count | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-1), WHOLE] | None = Field(None, description="-1 draws one.")
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    presence_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[Real, Field(ge=-100, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=2**31 - 1), WHOLE] | None = None
    logit_bias: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Real] | None = Field(
        None, description="Token id to what is added to its logit."
    )
    ignore_eos: bool | None = None

    prefill: Prefill | None = None
    return_progress: bool | None = Field(
        None, description="With stream: chunks with prompt_progress while the prompt is read."
    )

    # Without an effect on the answer of a server that keeps nothing and serves one client at a time.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: No | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    cache_prompt: Yes | None = None
