"""The shape of one layer of a model: its attention, what it caches, and the inputs and outputs of its dense
graphs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from h2o_runtime.errors import BundleError
from h2o_runtime.head_counts import HeadCounts
from h2o_runtime.limits import MAX_LAYERS, MAX_SIZE

Size: TypeAlias = Annotated[int, Field(gt=0, le=MAX_SIZE)]


@dataclass(frozen=True)
class AttentionShape:
    """The sizes that an attention provider needs, fixed at load time.

    query_heads, kv_heads  Hq, Hkv
    head_size              d, of queries and keys
    scale                  of the dot products; it need not follow from d
    value_size             dv, of values and outputs; 0: as head_size
    window                 keys that a row sees at most, back from its own, itself included; 0: all
    softcap                what a tanh keeps scores below, before softmax; 0: nothing does
    """

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    dtype: np.dtype[Any]
    value_size: int = 0
    window: int = 0
    softcap: float = 0.0

    def __post_init__(self) -> None:
        if not self.value_size:
            object.__setattr__(self, "value_size", self.head_size)

    @property
    def head_counts(self) -> HeadCounts:
        return HeadCounts(frozenset({self.query_heads}), frozenset({self.kv_heads}))

    @property
    def of_kernels(self) -> dict[str, Any]:
        """As native kernels take it. Raises ValueError for a dtype that they cannot store."""
        if self.dtype not in (np.float32, np.float16):
            raise ValueError(f"the native kernels store float32 or float16, not {self.dtype}")
        sizes = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "dtype"}
        return {**sizes, "half": self.dtype == np.float16}


@dataclass(frozen=True)
class CacheRow:
    """A token's row in a layer's cache: `heads` keys of `size` elements, and as many values.

    shared  only keys are stored; values are a part of them
    """

    heads: int
    size: int
    shared: bool = False

    @property
    def elements(self) -> int:
        return self.heads * self.size * (1 if self.shared else 2)


class StateSizes(RootModel[dict[str, Size]]):
    """Sizes by which a layer's kind lays out its state, by name; others follow from the layer's."""

    model_config = ConfigDict(frozen=True)

    def __hash__(self) -> int:
        return hash(frozenset(self.root.items()))


class Strict(BaseModel):
    """A part of a file, with no other fields than these."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Spec(Strict):
    """A part of a manifest. `later` are its newer fields: those that have their default are left out, so that
    earlier versions can read the manifest.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        for field in self.later:
            if getattr(self, field) == type(self).model_fields[field].default:
                written.pop(field, None)
        return written


class LayerSpec(Spec):
    """One layer's attention: its kind, its rows in the cache, and the inputs and outputs of its dense graphs.

    kind         a key of h2o_runtime.layers.LAYERS
    query_heads  Hq
    kv_heads     Hkv, of the cache
    head_size    d, of a key in the cache
    value_size   dv, of a value as attention reads it from the cache
    shared       whether values are the first dv elements of keys, and only keys are stored
    query_size   of a head's query, as the dense graph computes it
    out_size     of a head's attention output, as the next dense graph takes it
    rotary_size  elements of a head that are rotated by position
    scale        of the dot products
    window       keys that a row sees at most, back from its own, itself included; 0: all
    softcap      what a tanh keeps scores below, before softmax; 0: nothing does
    rotation     which of the model's tables of angles it is rotated by: see `rotation_names`
    sinks        for each query head a score that takes part in the softmax and has no key; empty: no sinks
    gate_size    elements of a token's gate, which its dense graph passes to the next one beside the residual stream
    state        sizes of its state, which it has in place of rows in a cache: see the kind's `state`
    source       the earlier layer whose rows it reads, if it has no keys and values of its own; None: its own rows
    lends        whether it is the source of later layers, and therefore also keeps rows beyond its window
    """

    later = ("window", "softcap", "rotation", "sinks", "gate_size", "state", "source", "lends")

    kind: str
    query_heads: int = Field(gt=0, le=MAX_SIZE)
    kv_heads: int = Field(gt=0, le=MAX_SIZE)
    head_size: int = Field(gt=0, le=MAX_SIZE)
    value_size: int = Field(gt=0, le=MAX_SIZE)
    shared: bool = False
    query_size: int = Field(gt=0, le=MAX_SIZE)
    out_size: int = Field(gt=0, le=MAX_SIZE)
    rotary_size: int = Field(ge=0, le=MAX_SIZE)
    scale: float = Field(gt=0)
    window: int = Field(default=0, ge=0)
    softcap: float = Field(default=0.0, ge=0)
    rotation: int = Field(default=0, ge=0, lt=MAX_LAYERS)
    sinks: tuple[float, ...] = ()
    gate_size: int = Field(default=0, ge=0, le=MAX_SIZE)
    state: StateSizes | None = None
    source: int | None = Field(default=None, ge=0, lt=MAX_LAYERS)
    lends: bool = False

    @model_validator(mode="after")
    def _one_sink_a_head(self) -> LayerSpec:
        if self.sinks and len(self.sinks) != self.query_heads:
            raise ValueError(f"{len(self.sinks)} sinks for {self.query_heads} query heads")
        return self

    def sizes_of_state(self, *names: str) -> tuple[int, ...]:
        """Raises BundleError unless the state has these sizes and no others."""
        sizes = self.state.root if self.state else {}
        if sizes.keys() != set(names):
            raise BundleError(
                f"the state of a layer of the kind {self.kind} has the sizes {', '.join(sorted(names))}, and the "
                f"bundle gives {', '.join(sorted(sizes)) or 'none'}; export the checkpoint again"
            )
        return tuple(sizes[name] for name in names)

    @property
    def has_rows(self) -> bool:
        """Whether a cache keeps rows of this layer itself."""
        return self.state is None and self.source is None

    @property
    def row(self) -> CacheRow:
        return CacheRow(self.kv_heads, self.head_size, self.shared)

    @property
    def sees_all(self) -> bool:
        """Whether it attends to all earlier tokens: policies handle only such layers."""
        return not self.window and self.state is None

    def attention(self, dtype: str) -> AttentionShape:
        """What an attention provider for this layer needs to know."""
        return AttentionShape(
            self.query_heads,
            self.kv_heads,
            self.head_size,
            self.scale,
            np.dtype(dtype),
            self.value_size,
            self.window,
            self.softcap,
        )


def rotation_names(table: int) -> tuple[str, str]:
    """The dense graphs' names for the cosines and sines of a table of angles; the first graph makes all
    tables.
    """
    number = f"_{table}" if table else ""
    return f"cos{number}", f"sin{number}"
