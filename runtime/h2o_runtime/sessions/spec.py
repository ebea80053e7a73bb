"""What sessions over one set of weights share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.devices import Device
from h2o_runtime.layers.live import Layers
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import Speculation
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy, policy_on_device


@dataclass(frozen=True)
class SessionSpec:
    """How a session is made.

    context   most tokens that it holds
    device    where its rows and the policies' states lie
    layers    the kinds of its layers, and what executes attention on their rows
    cache     how its rows are kept
    decoding  what a generated token sees
    commit    whether a session has all its memory from the start
    speculate whether answers are read ahead, and by what
    rows_ahead  of a step that can be taken back in layers with a state
    """

    bundle: Bundle
    context: int
    device: Device
    layers: Layers
    cache: Cache = field(default_factory=Contiguous)
    decoding: DecodePolicy[Any] = field(default_factory=FullDecode)
    speculate: Speculation = "auto"
    commit: bool = False
    rows_ahead: int = 0

    @property
    def model(self) -> ModelSpec:
        """With the dtype of activations, which may be wider than the bundle's."""
        return self.layers.model

    @property
    def prefill(self) -> PrefillPolicy[Any]:
        """Of prompts for which no policy is chosen."""
        return policy_on_device(self.bundle.manifest.prefill, self.device.name)

    @property
    def provider(self) -> AttentionProvider:
        """Of the first layer."""
        return self.layers.providers[0]

    @property
    def stored_dtype(self) -> str:
        """The format of stored rows."""
        return self.cache.stored_dtype(self.model)

    def forgets(self, tokens: int) -> int:
        """The number of these tokens that the cache evicts."""
        limit = self.cache.most_rows
        return 0 if limit is None else max(tokens - limit, 0)
