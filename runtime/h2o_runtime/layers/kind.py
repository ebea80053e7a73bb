"""The interface of a layer kind: everything that a layer does between its dense graphs and the policies'
attention.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.backend import Backend
from h2o_runtime.caches import Cache, LayerStore
from h2o_runtime.components.options import NamedConfiguration
from h2o_runtime.devices import Device, Flow, Tensor
from h2o_runtime.errors import BundleError
from h2o_runtime.layer_spec import AttentionShape, LayerSpec
from h2o_runtime.layers.activations import Activations
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import DecodePolicy, StepCall
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.schedule import Span


@dataclass(frozen=True)
class ArrayShape:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, count: int) -> ArrayShape:
        """So many of them below each other."""
        return ArrayShape((count, *self.shape), self.dtype)


@dataclass(frozen=True)
class Tail:
    """The last rows of an output of the dense graph, which the next call reads."""

    output: str
    rows: int


@dataclass(frozen=True)
class StateLayout:
    """A layer's state: arrays, which its kind's operator updates, and tails, which its dense graph reads.

    new     what the dense graph gives for a token besides queries and the gate, by the outputs' names
    arrays  by name
    tails   by the name of the dense graph's input; an output has one tail at most
    """

    new: Mapping[str, ArrayShape]
    arrays: Mapping[str, ArrayShape] = field(default_factory=dict)
    tails: Mapping[str, Tail] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, ArrayShape]:
        """All that is kept between tokens."""
        tails = {name: self.new[tail.output].rows(tail.rows) for name, tail in self.tails.items()}
        return {**tails, **self.arrays}

    def before(self, output: str) -> int:
        """Rows in front of an output's new ones: the tail that its next one is cut from, too."""
        return self._rows_before.get(output, 0)

    @cached_property
    def _rows_before(self) -> dict[str, int]:
        return {tail.output: tail.rows for tail in self.tails.values()}

    def room(self, rows: int) -> dict[str, ArrayShape]:
        """Buffers of `new` for so many tokens, with those in front."""
        return {name: row.rows(self.before(name) + rows) for name, row in self.new.items()}


@dataclass(frozen=True)
class LayerResources:
    """What a kind is loaded with: the model and its resources, for `capacity` tokens.

    provide  an active provider for a shape, the same one for the same shape; closed with the model
    """

    model: ModelSpec
    backend: Backend
    buffers: Activations
    capacity: int
    device: Device
    cache: Cache
    provider: AttentionProvider
    provide: Callable[[AttentionShape], AttentionProvider]


class LoadedLayers:
    """The layers of one kind in a loaded model. These do nothing: dense graphs and attention share their buffers.

    A kind overrides what it does; `layer` is the number of one of its layers in the model.

    in_step_graph  whether a step of these layers is attention between dense graphs and nothing else, so that it may
                   be part of one graph, or have rows of several sessions
    one_row_because  why a step cannot have several rows of a session and take any last ones back; None: it can
    divisible      whether a prompt may be read piece by piece, each behind those before it
    """

    in_step_graph: bool = True
    one_row_because: str | None = None
    divisible: bool = True

    def __init__(self, resources: LayerResources) -> None:
        self._buffers = resources.buffers

    def settle(self, policy: PrefillPolicy[Any], past: int, n: int) -> None:
        """A prompt of n tokens after `past` cached ones is about to run. Raises ConfigError without changing
        anything.
        """

    def after(
        self, layer: int, rows: Span, past: int, cache: LayerStore, new: dict[str, Tensor], flow: Flow
    ) -> None:
        """The layer's dense graph was called for rows of the prompt, whose cache rows are `new`: see
        `LayerStore.target`. Runs in the dense lane; `flow` can make it wait for attention.
        """

    def call(self, call: LayerCall) -> LayerCall:
        """The call of one layer's attention for the policy."""
        return call

    def attend(self, policy: PrefillPolicy[Any], call: LayerCall, state: Any) -> None:
        """Fill `call.o` with the prompt's policy, whose state is `state`."""
        policy.attend(call, state)

    def decoding(self, policy: DecodePolicy[Any]) -> DecodePolicy[Any]:
        """The attention of a step of these layers, for a session with the decode policy `policy`."""
        return policy

    def attend_rows(self, policy: DecodePolicy[Any], call: StepCall, state: Any) -> None:
        """As `policy.attend` of R rows of one session, each after the one before: q, o [R, Hq, d], the last rows of
        `call.kv`. Only where there is no `one_row_because`.
        """
        first = int(call.kv.length) - len(call.q) + 1
        for row in range(len(call.q)):
            q, o = call.q[row : row + 1], call.o[row : row + 1]
            policy.attend(replace(call, q=q, o=o, kv=call.kv.upto(first + row)), state)

    def before(self, layer: int, rows: Span) -> None:
        """The layer's attention to these rows is done, and the next dense graph is about to be called for
        them.
        """

    def step(self, layer: int) -> tuple[Tensor, Tensor]:
        """Query and attention output of a decode step, [1, Hq, d] and [1, Hq, dv], always in the same
        memory.
        """
        return self._buffers.q[layer][:1], self._buffers.attention[layer][:1]

    def bound_after(self, layer: int) -> tuple[Callable[[], None], ...]:
        """`after` for a decode step; called in turn, always with the same memory."""
        return ()

    def bound_before(self, layer: int) -> tuple[Callable[[], None], ...]:
        """`before` for a decode step."""
        return ()

    @property
    def nbytes(self) -> int:
        """Bytes of its own buffers."""
        return 0

    def report(self) -> dict[str, Any]:
        """How the last prompt was read, by name of the kind's options."""
        return {}


@dataclass(frozen=True)
class LayerKind(NamedConfiguration, ABC):
    """A kind of layer. Fields are settings of how a bundle's layers of it run, each an `option`.

    What a layer's cache keeps and what its dense graphs take, the bundle says: `LayerSpec`, whose `kind` is a name.
    """

    @classmethod
    def state(cls, spec: LayerSpec, dtype: DTypeLike) -> StateLayout:
        """What a layer keeps in place of rows, where `LayerSpec.state` has sizes for it; `dtype` is the model's.

        Raises BundleError where they are not those of this kind.
        """
        raise BundleError(f"layers of the kind {cls.name} have rows, and the bundle gives sizes of a state")

    def load(self, resources: LayerResources) -> LoadedLayers:
        """Raises ConfigError for settings that contradict what was loaded."""
        return LoadedLayers(resources)

    def buffer_bytes(self, model: ModelSpec, capacity: int, cache: Cache) -> int:
        """Bytes of the buffers of `load`."""
        return 0

    def cache_refusal(self, cache: Cache | type[Cache]) -> str | None:
        """Why a cache cannot store the rows of such layers, as a sentence; None: it can."""
        return None

    def decode_refusal(self, decoding: DecodePolicy[Any]) -> str | None:
        return None

    def prefill_refusal(self, policy: PrefillPolicy[Any]) -> str | None:
        return None

    def multiplications(self, model: ModelSpec, spec: LayerSpec) -> int:
        """Weights per token in one layer, from the norm to queries, keys and values."""
        own = 2 * spec.kv_heads if spec.source is None else 0
        return model.hidden_size * spec.head_size * (spec.query_heads + own)

    def comparisons(self) -> tuple[LayerKind, ...]:
        """Variants of itself that compute the same numbers in other ways; comparisons run each."""
        return (self,)
