"""The interface of a prefill policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.reuse import Prefix, Provenance, Reuse
from h2o_runtime.components.options import NamedConfiguration, option
from h2o_runtime.devices import Device, Flow, Tensor
from h2o_runtime.devices.timings import Stopwatch
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import PROMPT_ATTENTION
from h2o_runtime.schedule import Span

State = TypeVar("State")


@dataclass(frozen=True)
class PromptPiece:
    """Where a call's new tokens stand in their prompt, which `PrefillPolicy.cuts` has allowed to be cut.

    before  tokens of the same prompt that earlier calls have read, and the policy's state knows
    more    whether further ones follow
    """

    before: int = 0
    more: bool = False


WHOLE = PromptPiece()


@dataclass(frozen=True)
class PromptCall:
    """A prompt that is about to run: n new tokens behind `past` cached ones, which are `prefix` to it.

    generated  bool [past], true where decode put the token, not a prompt
    """

    n: int
    past: int
    prefix: Prefix
    generated: NDArray[np.bool_]
    prompt_piece: PromptPiece = WHOLE


@dataclass(frozen=True)
class LayerCall:
    """One layer's attention over the n new tokens of a prompt.

    q, o        [n, Hq, d]: queries in, attention output out
    k, v        [n, Hkv, d]: the new tokens' keys and values, as the dense graph made them; where v is k, the first
                numbers of a key are its value. None in a layer with a state
    kv          the layer's cache of past + n rows, the new ones at its end; of a layer with a window maybe only the
                last of them
    prefix      what the `past` cached tokens are
    flow        told which rows are about to be read, and which are final
    checkpoint  called between steps with the number of rows done; raises Cancelled when asked to stop
    needed      rows of `o` before this one are read by nobody: in the last layer that is all but those whose
                logits are asked for. What a policy remembers of the prompt does not depend on it
    """

    layer: int
    q: Tensor
    o: Tensor
    k: Tensor
    v: Tensor
    kv: KV
    past: int
    prefix: Prefix
    provider: AttentionProvider
    timer: Stopwatch
    flow: Flow
    checkpoint: Callable[[int], None]
    needed: int = 0
    prompt_piece: PromptPiece = WHOLE

    def new_rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """k and v of some of the new tokens; one tensor if values are stored in keys."""
        k = self.k[start:stop]
        return k, (k if self.v is self.k else self.v[start:stop])

    def dense_rows(self, start: int, stop: int) -> None:
        """The needed rows of start … stop - 1 attend to everything before them."""
        start = max(start, self.needed)
        if start >= stop:
            return
        assert isinstance(self.kv.length, int), "that of a prompt is known"
        later = len(self.q) - stop
        kv = self.kv.upto(self.kv.length - later) if later else self.kv
        self.provider.run(PROMPT_ATTENTION, kv, q=self.q[start:stop], o=self.o[start:stop])


@dataclass(frozen=True)
class PrefillReport:
    """Which keys a policy kept of a prompt's past, for people and for evaluations.

    last        int32 [layers, Hs, M] after the last full chunk; no layers where nothing was left out
    boundaries  int32 [boundaries, layers, Hs, M]: after every full chunk of a prompt that ran from its first token,
                or for every tile of queries where each has its own; -1 fills up sets that have fewer
    seen_by     rows of the prompt whose queries see each of `boundaries`
    last_by     those that see `last`, where a policy tells
    """

    last: NDArray[np.int32]
    boundaries: NDArray[np.int32]
    seen_by: tuple[Span, ...] = ()
    last_by: Span | None = None

    @classmethod
    def empty(cls) -> PrefillReport:
        return cls(np.zeros((0, 0, 0), np.int32), np.zeros((0, 0, 0, 0), np.int32))


@dataclass(frozen=True)
class Seen:
    """What a prompt's rows saw of their attention, by layers and groups of rows that see the same of the past.

    Each number is a share, 0.01 being 1 %.

    seen     of the attention that full attention gives; mean, and least_seen of the group that saw least
    missed   what likeliest tokens have of it that were not seen; mean, and most_missed of the chunk of most
    widened  groups that therefore saw everything; the other numbers are of before
    """

    seen: float
    least_seen: float
    missed: float
    most_missed: float
    widened: float

    def summary(self) -> str:
        """The means, as a part of a sentence."""
        return f"{100 * self.seen:.1f} % of attention seen, {100 * self.missed:.1f} % missed"


def chunk_option() -> Any:
    """The chunk size, for policies with chunks: the same option for all."""
    return option(
        1024,
        "Chunk S: tokens of one unit of the sparse pattern.",
        least=2,
    )


@dataclass(frozen=True)
class SavedState:
    """The part of a policy's state with which a session can continue: views on the device, and numbers, by
    name.
    """

    arrays: Mapping[str, Tensor]
    numbers: Mapping[str, int]


@dataclass(frozen=True)
class PrefillPolicy(NamedConfiguration, ABC, Generic[State]):
    """Fields are the configuration, each an `option`; `attend` is the algorithm; a State is what it remembers.

    exact   whether every query sees everything before it
    phases  the kinds of work that `attend` measures with `call.timer`
    presets settings by a name that stands for them, in place of the policy's
    value_sizes   whether its operators take values of another size than keys, and values that are a part of keys
    spanning_lists  whether one list of rows may serve several key heads
    mixed_rows    whether layers may differ in what their caches keep of a token
    joined_by_sinks  whether its operators are those that sinks join: see `h2o_runtime.attention.sinks`
    only_on_cpu   why a GPU refuses it, for messages; empty if it does not

    Raises ConfigError for values that contradict. Only `attend` and `visible_pairs` must be written; what is
    here otherwise belongs to a policy that remembers nothing and leaves nothing behind to go on from.
    """

    exact: ClassVar[bool] = False
    phases: ClassVar[tuple[str, ...]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    value_sizes: ClassVar[bool] = False
    spanning_lists: ClassVar[bool] = False
    mixed_rows: ClassVar[bool] = False
    joined_by_sinks: ClassVar[bool] = False
    only_on_cpu: ClassVar[str] = ""

    batch_size: int = option(
        4096,
        "Logical batch B: maximum tokens in one call of a dense graph.",
        least=1,
        numeric=False,
    )

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> State | None:
        """Allocate everything that `attend` needs for a cache of `capacity` rows."""
        return None

    def cuts(self, n: int, reuse: Reuse, rows: int) -> Sequence[int]:
        """Where n new tokens after what is kept may be cut into pieces of about `rows`, so that one after the
        other they give what they give at once: rising, from 1 to n - 1. Empty: they are read at once."""
        return ()

    def start_prompt(self, prompt: PromptCall, state: Any) -> None:
        """Once per prompt, or per prompt piece, before layer 0."""

    @abstractmethod
    def attend(self, call: LayerCall, state: Any) -> None:
        """Fill `call.o`. Layers come in order, each with all of the prompt's new tokens."""

    def reuse(self, shared: int, cached: int, n: int, origin: Provenance) -> Reuse:
        """How many rows to keep for a prompt of n tokens that shares `shared` tokens with the `cached` ones;
        at most n - 1.
        """
        return Reuse(Prefix.NONE, 0)

    def lasting_rows(self, n: int) -> int:
        """For a fresh prompt of n tokens: the first rows that any longer prompt with these tokens computes
        alike.
        """
        return 0

    def after_interruption(self, reuse: Reuse, n: int, before: Provenance) -> Provenance:
        """The provenance of the cache up to `reuse.length` after a run over n more tokens was interrupted."""
        return Provenance() if reuse.prefix is Prefix.NONE else before

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        """Bytes of `new_state` for `context` tokens."""
        return 0

    @abstractmethod
    def visible_pairs(self, n: int) -> int:
        """The number of (query, key) pairs per head that a fresh prompt of n tokens computes, if all rows are
        needed.
        """

    def last_layer_pairs(self, n: int) -> int:
        """As `visible_pairs` in the last layer, where only the prompt's last row is needed."""
        return self.visible_pairs(n)

    def saved_state(self, state: Any, length: int) -> SavedState | None:
        """The state of a session of `length` rows, to write to a file or to read into. None: it cannot be
        saved.
        """
        return SavedState({}, {}) if state is None else None

    def restore(self, state: Any, numbers: Mapping[str, int]) -> None:
        """Restore the saved numbers, before the arrays are filled. Raises LookupError if one is missing."""

    def report(self, state: Any, origin: Provenance) -> PrefillReport:
        """The keys kept of the prompt that `origin` describes. May wait for the device."""
        return PrefillReport.empty()

    def seen_share(self, state: Any) -> Seen | None:
        """For the last prompt's new tokens; None if nothing was compared with full attention."""
        return None

    def refusal(self, device: str) -> str:
        """Why it does not run on a device of this name (`Device.name`), for messages; empty if it does."""
        return "" if device == "cpu" else self.only_on_cpu

    def counts(self, n: int) -> dict[str, int]:
        """For a run over n new tokens: the number of `chunks`, and `memory_size`, the keys kept of the
        past.
        """
        return {"chunks": 1, "memory_size": 0}

    def budget(self, n: int) -> dict[str, int]:
        """chunk_size, local, heavy, dense_tail and tail_tile of a policy that is to keep as many keys as this one
        does at the end of n tokens, and to have the same dense tail; only those that this policy has.
        """
        return {}

    def summary(self) -> str:
        """A short description."""
        return self.title.capitalize()
