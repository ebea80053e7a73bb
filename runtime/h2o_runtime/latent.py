"""Latent attention between the dense graphs: one set of weights, two forms of the same numbers.

Absorbed, queries are carried into the space of latents and see the cache itself. A pair of query and key then costs
2 (2r + dr) operations a head, and nothing is done for a key. Expanded, keys and values of every head are made of
the latents first: a pair costs 2 (dn + dr + dv), and every key, also of the past, 2r (dn + dv). Decode is absorbed;
for a prompt whichever costs less is taken, unless it is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from h2o_runtime.activations import Activations
from h2o_runtime.attention.base import AttentionProvider
from h2o_runtime.backends.base import Backend
from h2o_runtime.caches import Cache, Contiguous, LayerStore
from h2o_runtime.compatibility import check_policy
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import ConfigError
from h2o_runtime.kv import KV
from h2o_runtime.model import AttentionShape, LatentSpec, ModelSpec
from h2o_runtime.names import LatentChoice, LatentForm
from h2o_runtime.policies.prefill import LayerCall, PrefillPolicy
from h2o_runtime.schedule import Span, spans


class LatentAttention:
    """What a latent model's layers do between their dense graphs and attention; the form of a prompt.

    `expanded` executes operators on expanded keys and values; None: nobody does. `plain` is whether the cache holds
    latents as dense graphs write them, row by row: only then past ones can be expanded.
    """

    def __init__(
        self,
        model: ModelSpec,
        backend: Backend,
        expanded: AttentionProvider | None,
        buffers: Activations,
        capacity: int,
        device: Device,
        choice: LatentChoice,
        plain: bool,
    ) -> None:
        assert model.latent is not None
        if choice == "expanded" and not plain:
            raise ConfigError(
                "--latent expanded reads latents back as they were computed: keep --cache contiguous and "
                "--cache-dtype model with it, or leave it out",
                field="latent",
            )
        if choice == "expanded" and expanded is None:
            raise ConfigError(
                f"--latent expanded has heads of {model.query_size} and {model.out_size} elements, which no "
                "kernel takes: add --attention functions, or leave it out",
                field="latent",
            )
        self.model, self.sizes = model, model.latent
        self._backend, self._provider = backend, expanded
        if expanded is None:
            choice = "absorbed"
        self._choice, self._plain = choice, plain
        self._q, self._attention = buffers.q, buffers.attention
        rows = absorbed_rows(model, capacity, choice, plain)
        self.absorbed = device.empty((rows, model.query_heads, model.head_size), model.dtype)
        self.context = device.empty((rows, model.query_heads, model.latent.rank), model.dtype)
        self.form: LatentForm = "absorbed" if rows == capacity else "expanded"
        rows = 0 if choice == "absorbed" else capacity
        self.k = device.empty((rows, model.query_heads, model.query_size), model.dtype)
        self.v = device.empty((rows, model.query_heads, model.out_size), model.dtype)

    def begin(self, policy: PrefillPolicy[Any], past: int, n: int) -> None:
        """A prompt of n tokens behind `past` cached ones is about to run: settle its form. Raises ConfigError."""
        self.form = self._form(policy, past, n)

    def before(self, layer: int, rows: Span) -> None:
        """Rows of the call whose attention in `layer` is done are about to be read by the next dense graph."""
        if self.form == "absorbed":
            self._backend.infer(f"contract_{layer:02d}", *self._contraction(slice(rows.start, rows.stop)))

    def after(self, layer: int, rows: Span, past: int, cache: LayerStore, new: Tensor) -> None:
        """The dense graph of `layer` has made queries of rows of the call, and of latents `new` [n, 1, r + dr]."""
        cut = slice(rows.start, rows.stop)
        if self.form == "absorbed":
            self._backend.infer(f"absorb_{layer:02d}", *self._absorption(cut))
            return
        if rows.start == 0 and past:
            for some in spans(past, min(past, self._backend.most_rows, EXPANDED_AT_ONCE)):
                self._expand(layer, cache.view(past).k[some.start : some.stop], some.start)
        self._expand(layer, new, past + rows.start)

    def call(self, call: LayerCall) -> LayerCall:
        """One layer's attention in the form of the prompt."""
        n, length = len(call.q), call.past + len(call.q)
        if self.form == "absorbed":
            return replace(call, q=self.absorbed[:n], o=self.context[:n])
        kv = KV(self.k, self.v, length)
        new = slice(call.past, length)
        assert self._provider is not None
        return replace(call, k=self.k[new], v=self.v[new], kv=kv, provider=self._provider)

    def bound_before(self, layer: int) -> Callable[[], None]:
        """`before` of a decode step, which is always absorbed."""
        return self._backend.bound(f"contract_{layer:02d}", *self._contraction(slice(0, 1)))

    def bound_after(self, layer: int) -> Callable[[], None]:
        """`after` of a decode step."""
        return self._backend.bound(f"absorb_{layer:02d}", *self._absorption(slice(0, 1)))

    def _absorption(self, rows: slice) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"q": self._q[rows]}, {"absorbed": self.absorbed[rows]}

    def _contraction(self, rows: slice) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"context": self.context[rows]}, {"attention": self._attention[rows]}

    def _expand(self, layer: int, latents: Tensor, start: int) -> None:
        rows = slice(start, start + len(latents))
        self._backend.infer(
            f"expand_{layer:02d}", {"latents": latents}, {"k": self.k[rows], "v": self.v[rows]}
        )

    def _form(self, policy: PrefillPolicy[Any], past: int, n: int) -> LatentForm:
        able = policy.latent_forms
        check_policy(self.model, policy)
        if past and not self._plain:
            able = tuple(form for form in able if form == "absorbed")
        if self._choice != "auto":
            wanted: LatentForm = self._choice
        elif "expanded" not in able or (
            "absorbed" in able
            and n <= len(self.absorbed)
            and absorbed_cheaper(self.sizes, _pairs(policy, past, n), past)
        ):
            wanted = "absorbed"
        else:
            wanted = "expanded"
        if wanted not in able or (wanted == "absorbed" and n > len(self.absorbed)):
            other = "absorbed" if wanted == "expanded" or "expanded" not in able else "expanded"
            raise ConfigError(
                f"policy {policy.name} with these settings needs latent attention {other}: load the bundle with "
                f"--latent {other}, or use another policy",
                field="policy",
            )
        return wanted

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.absorbed, self.context, self.k, self.v))


EXPANDED_AT_ONCE = 4096  # rows of the past


def expansion(model: ModelSpec, provider: AttentionProvider) -> AttentionShape | None:
    """What another provider of the kind must be made for; None where its kernels do not take such heads."""
    if model.latent is None:
        return None
    return model.expanded if provider.takes(model.expanded) else None


def is_plain(model: ModelSpec, cache: Cache) -> bool:
    """Whether a cache holds rows as dense graphs write them, one behind the other."""
    return isinstance(cache, Contiguous) and cache.stored_dtype(model) == model.dtype


def absorbed_cheaper(sizes: LatentSpec, pairs: int, past: int) -> bool:
    """Whether a prompt costs fewer operations absorbed: `pairs` of query and key a head, behind `past` latents.

    What is done for the prompt's own rows is the same in both forms: absorbing and contracting is as much as
    expanding.
    """
    key = sizes.rank * (sizes.nope_size + sizes.value_size)
    return pairs * _more_a_pair(sizes) < past * key


def absorbed_rows(model: ModelSpec, capacity: int, choice: LatentChoice, plain: bool) -> int:
    """Rows that buffers of the absorbed form have: as many as it may be chosen for, and one for decode.

    The more rows see a past under full attention, the sooner it pays to expand it: beyond this many, always.
    """
    if choice == "expanded":
        return 1
    sizes = model.latent
    assert sizes is not None
    more = _more_a_pair(sizes)
    if choice == "absorbed" or not plain or more <= 0:
        return capacity
    return max(1, min(capacity, sizes.rank * (sizes.nope_size + sizes.value_size) // more))


def latent_bytes(model: ModelSpec, capacity: int, choice: LatentChoice, plain: bool) -> int:
    """What the buffers of `LatentAttention` take."""
    assert model.latent is not None
    absorbed = absorbed_rows(model, capacity, choice, plain) * (model.head_size + model.latent.rank)
    expanded = 0 if choice == "absorbed" else capacity * (model.query_size + model.out_size)
    return model.query_heads * (absorbed + expanded) * np.dtype(model.dtype).itemsize


def _more_a_pair(sizes: LatentSpec) -> int:
    """Multiplications that a pair costs more absorbed than expanded."""
    return (2 * sizes.rank + sizes.rope_size) - (sizes.nope_size + sizes.rope_size + sizes.value_size)


def _pairs(policy: PrefillPolicy[Any], past: int, n: int) -> int:
    """Of query and key, that a prompt of n tokens adds to those of its past."""
    return policy.visible_pairs(past + n) - (policy.visible_pairs(past) if past else 0)
