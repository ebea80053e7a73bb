"""The interface between policies and attention providers.

One method, `run`, executes every operator in `h2o_runtime.operators`. It writes into the caller's arrays, so
that nothing is allocated per chunk or token. The table has each operator's argument names and sizes;
docs/operators.md describes each operator.

Values may be stored in keys (`KV.latent`). dv may differ from d, and Hs may be below Hkv, in the operators
that docs/operators.md names. The other operators refuse such calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from h2o_runtime.devices import Tensor
from h2o_runtime.kv import KV
from h2o_runtime.layer_spec import AttentionShape as AttentionShape
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import CACHE_APPEND, MEMORY_FUSED_ATTENTION

# Arrays on the provider's device. A plain Tensor has the bundle's dtype, float32 or float16.
Float32: TypeAlias = Tensor
Int32: TypeAlias = Tensor


@dataclass(frozen=True)
class PartialSoftmax:
    """State of a softmax over some of the keys: normalised output, row maximum, denominator."""

    o: Tensor  # [n, Hq, dv]
    m: Float32  # [n, Hq]
    l: Float32  # [n, Hq]

    def rows(self, start: int, stop: int) -> PartialSoftmax:
        if start == 0 and stop == len(self.m):
            return self
        return PartialSoftmax(self.o[start:stop], self.m[start:stop], self.l[start:stop])

    @property
    def out(self) -> dict[str, Tensor]:
        """As the outputs of an operator."""
        return {"o": self.o, "m": self.m, "l": self.l}

    @property
    def intra(self) -> dict[str, Tensor]:
        """As the state that an operator fuses its own into, in place."""
        return {"o_intra": self.o, "m_intra": self.m, "l_intra": self.l}


@dataclass(frozen=True)
class NextMemory:
    """Where a selected memory set is written: `memory`, int32 [Hs, M], and what else is stored of it."""

    memory: Int32
    last: Int32 | None = None  # as `memory`
    boundary: Int32 | None = None  # as `memory`
    scores: Float32 | None = None  # [Hs, M], of its rows

    @property
    def out(self) -> dict[str, Tensor | None]:
        """As the outputs of an operator."""
        outputs = {"last": self.last, "boundary": self.boundary, "scores": self.scores}
        return {"memory_next": self.memory, **outputs}


class AttentionProvider(Protocol):
    """Executes the operators of ONNX domain ``h2o`` for one model shape.

    in_graphs  whether ONNX Runtime graphs may run its decode steps instead, with the same kernels
    """

    name: str
    in_graphs: bool

    def takes(self, shape: AttentionShape) -> bool:
        """Whether it has operators for heads of these sizes."""

    def activate(self, shape: AttentionShape) -> None:
        """Prepare to run; called once before any operator."""

    def deactivate(self) -> None:
        """Free what `activate` allocated."""

    def run(self, operator: Operator, kv: KV | None = None, **arguments: Any) -> None:
        """Execute one operator of the table.

        `kv` provides the tensors k_cache, v_cache and length. Other tensors and attributes have the table's
        names; an optional tensor may be absent or None. If an output that may share an input's memory is
        absent, it does. The scale may be absent: it is the model's. So may an attribute that follows from a
        tensor's size, as `heavy` does from `local` and M. Integers that a kernel reads from a tensor, such as
        `start`, may be Python ints or a tuple of two.

        Raises ValueError that names the argument that does not agree.
        """


def append_rows(provider: AttentionProvider, k: Tensor, v: Tensor | None, at: int | Tensor, kv: KV) -> None:
    """Store k [n, Hkv, d] and v [n, Hkv, dv] as the rows of `kv` from `at` on, in the format of `kv`.

    k and v have the model's dtype. If values are stored in keys, v is not read. For the row of a decode step,
    `at` is an int64 [1] on the device, so that the call can be recorded. Other rows are stored after the
    dense graphs enqueued so far, and later dense graphs see them.
    """
    where = {"first": at} if isinstance(at, int) else {"first": 0, "at": at}
    provider.run(CACHE_APPEND, kv, k=k, v=k if v is None else v, **where)


def each_tile(
    provider: AttentionProvider, q: Tensor, kv: KV, memory: Int32, tile: int, state: PartialSoftmax
) -> None:
    """TiledMemoryAttention as one MemoryFusedAttention per tile."""
    for i in range(len(memory)):
        rows = slice(i * tile, min((i + 1) * tile, len(q)))
        partial = state.rows(rows.start, rows.stop)
        provider.run(MEMORY_FUSED_ATTENTION, kv, q=q[rows], memory=memory[i], **partial.intra)
