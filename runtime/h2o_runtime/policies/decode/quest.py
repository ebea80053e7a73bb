"""Page top-k: a generated token attends to the pages whose keys may score highest.

Quest (Tang et al., 2024, "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference"): the minimum
and maximum of each key channel bound the score of a query with any key of the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from h2o_runtime.attention.provider import AttentionProvider, Float32, Int32
from h2o_runtime.caches.cache import Rows
from h2o_runtime.components.options import option
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.operators import CACHED_ATTENTION, PAGE_ATTENTION, PAGE_BOUNDS, PAGE_SELECT
from h2o_runtime.policies.decode.policy import DecodePolicy, StepCall


class PageState:
    """Bounds of every page of the sparse layers, and one page list for each set of heads."""

    def __init__(self, shape: tuple[int, int, int, int], lists: tuple[int, int], device: Device) -> None:
        """shape: layers, pages, key/value heads, head size; lists: sets and pages of each."""
        self.k_min: Float32 = device.zeros(shape, np.float32)
        self.k_max: Float32 = device.zeros(shape, np.float32)
        self.page_list: Int32 = device.zeros(lists, np.int32)


@dataclass(frozen=True)
class Quest(DecodePolicy[PageState]):
    """The last page is always selected. The first layers attend to everything, because their attention is
    spread widely.
    """

    name: ClassVar[str] = "quest"
    title: ClassVar[str] = "best pages"
    slow_on_gpu: ClassVar[str] = (
        "`decode=quest` saved no time behind up to 32,768 tokens on the GPU that was measured"
    )

    budget: int = option(1024, "Tokens that a generated token attends to, in whole pages.", least=1)
    page: int = option(16, "Tokens of one page.", least=1)
    dense_layers: int = option(2, "First layers that attend to every token.", least=0)
    heads: Literal["query", "kv"] = option(
        "query", "Heads with their own list of pages: query heads or key/value heads."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget < self.page:
            raise ConfigError(
                f"budget ({self.budget}) is less than one page of {self.page}: raise budget or lower page",
                field="budget",
            )

    def new_state(self, model: ModelSpec, capacity: int, device: Device) -> PageState:
        return PageState(*self._shapes(model, capacity), device)

    def state_bytes(self, model: ModelSpec, context: int) -> int:
        bounds, lists = self._shapes(model, context)
        return 4 * int(2 * np.prod(bounds, dtype=np.int64) + np.prod(lists, dtype=np.int64))

    def step_bytes(self, model: ModelSpec, context: int) -> int:
        everything = super().step_bytes(model, context)
        (layers, pages, heads, size), _ = self._shapes(model, context)
        if pages * self.page <= self.budget:
            return everything
        row = everything // (model.layers * context)
        rows_read = (model.layers - layers) * context + layers * self.budget
        return rows_read * row + layers * pages * 2 * heads * size * 4

    def _shapes(self, model: ModelSpec, rows: int) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
        layers = max(model.layers - self.dense_layers, 0)
        bounds = (layers, -(-rows // self.page), model.kv_heads, model.head_size)
        return bounds, (model.head_counts.scored(self.heads), self.budget // self.page)

    def reads_in_pages(self, layer: int) -> bool:
        return layer >= self.dense_layers

    def observe(self, layer: int, kv: KV, rows: Rows, provider: AttentionProvider, state: PageState) -> None:
        """A step's row joins its page. A prompt may begin inside a page: the bounds of that page are computed
        again.
        """
        sparse, page = layer - self.dense_layers, self.page
        if sparse >= 0:
            start = rows.start // page * page if rows.at is None else rows.at
            provider.run(
                PAGE_BOUNDS,
                kv,
                k_min=state.k_min[sparse],
                k_max=state.k_max[sparse],
                start=start,
                page_size=page,
            )

    def attend(self, call: StepCall, state: PageState) -> None:
        sparse, page = call.layer - self.dense_layers, self.page
        if sparse < 0:
            call.provider.run(CACHED_ATTENTION, call.kv, q=call.q, o=call.o)
            return
        k_min, k_max = state.k_min[sparse], state.k_max[sparse]
        call.provider.run(
            PAGE_SELECT,
            call.kv,
            q=call.q,
            k_min=k_min,
            k_max=k_max,
            page_size=page,
            page_list=state.page_list,
        )
        call.fetch(state.page_list, page)
        call.provider.run(
            PAGE_ATTENTION, call.kv, q=call.q, page_list=state.page_list, page_size=page, o=call.o
        )
