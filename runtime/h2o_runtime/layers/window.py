"""Sliding-window attention: a token sees the last rows up to its own, exactly, under every policy.

Policies handle the other layers only (`ModelSpec.under_policies`). Everything else is as in grouped-query
attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from h2o_runtime.caches import Cache
from h2o_runtime.layers.kind import LayerKind, LayerResources, LoadedLayers
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.policies.prefill.full import attend_in_spans


@dataclass(frozen=True)
class Window(LayerKind):
    """`LayerSpec.window` is the number of rows; the attention operators get it with the layer's shape."""

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "sliding-window attention"

    def load(self, resources: LayerResources) -> WindowLayers:
        return WindowLayers(resources)

    def cache_refusal(self, cache: Cache | type[Cache]) -> str | None:
        if cache.keeps_distances:
            return None
        return (
            f"the cache {cache.name} evicts rows between others, and a sliding window counts them: use "
            "another cache"
        )


class WindowLayers(LoadedLayers):
    divisible = (
        False  # its rows are already read in parts, and no test shows that pieces give the same result
    )

    def attend(self, policy: PrefillPolicy[Any], call: LayerCall, state: Any) -> None:
        attend_in_spans(call, policy.batch_size, policy.phases[0])

    def decoding(self, policy: DecodePolicy[Any]) -> DecodePolicy[Any]:
        return FullDecode()
