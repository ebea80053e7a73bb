"""All layers of one model: their kinds, and the live objects of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.attention.sinks import provider_with_sinks
from h2o_runtime.backend import Backend
from h2o_runtime.caches import Cache
from h2o_runtime.components.options import Option, options_of
from h2o_runtime.devices import Device
from h2o_runtime.errors import ConfigError
from h2o_runtime.layer_spec import AttentionShape, LayerSpec
from h2o_runtime.layers import LAYERS, LayerKind, LayerResources, LoadedLayers
from h2o_runtime.layers.activations import Activations
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import PrefillPolicy

LayerSettings = Mapping[str, Any]  # by name of the kinds' options


def layer_options() -> tuple[Option, ...]:
    """Settings for which some model has layers."""
    return tuple({one.name: one for kind in LAYERS for one in options_of(kind)}.values())


def kinds_of(model: ModelSpec, settings: LayerSettings | None = None) -> dict[str, LayerKind]:
    """The kinds of a model's layers by name. Raises ConfigError for settings that none of them has."""
    names = dict.fromkeys(spec.kind for spec in model.each_layer)
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    kinds = {}
    for name in names:
        own = [one.name for one in options_of(LAYERS[name])]
        kinds[name] = LAYERS[name](**{option: given[option] for option in own if option in given})
    used = {one.name for kind in kinds.values() for one in options_of(type(kind))}
    for option in layer_options():
        if option.name in given and option.name not in used:
            owners = " and ".join(kind.title for kind in LAYERS if option in options_of(kind))
            raise ConfigError(f"{option.name} is for models with {owners}: leave it out", field=option.name)
    return kinds


def equivalent_settings(model: ModelSpec) -> tuple[LayerSettings, ...]:
    """Settings under which a model's layers compute the same numbers in different ways; at least one."""
    kinds = kinds_of(model).values()
    return tuple(
        {name: value for kind in chosen for name, value in asdict(kind).items()}
        for chosen in product(*(kind.comparisons() for kind in kinds))
    )


class Layers:
    """The kinds of a model's layers, and an active attention provider for each of its layers.

    `make` creates an inactive provider, one for every shape of attention. Sessions share them.
    """

    def __init__(
        self,
        model: ModelSpec,
        make: Callable[[], AttentionProvider],
        settings: LayerSettings | None = None,
    ) -> None:
        """Raises ConfigError for settings that the model's layers do not have."""
        self.model = model
        self.kinds = kinds_of(model, settings)
        self._make = make
        self._active: dict[AttentionShape, AttentionProvider] = {}
        self.providers = tuple(map(self._of_layer, model.each_layer))

    def provide(self, shape: AttentionShape) -> AttentionProvider:
        """The active provider of a shape."""
        if shape not in self._active:
            provider = self._make()
            if not provider.takes(shape):
                raise ConfigError(
                    f"no kernel takes keys of {shape.head_size} and values of {shape.value_size} elements: use "
                    "`attention=functions`",
                    field="attention",
                )
            provider.activate(shape)
            self._active[shape] = provider
        return self._active[shape]

    def _of_layer(self, spec: LayerSpec) -> AttentionProvider:
        provider = self.provide(spec.attention(self.model.dtype))
        return provider_with_sinks(provider, spec.sinks) if spec.sinks else provider

    def load(
        self, backend: Backend, buffers: Activations, capacity: int, device: Device, cache: Cache
    ) -> LiveLayers:
        """Raises ConfigError for settings that contradict these resources."""
        provider = self.providers[0]
        resources = LayerResources(
            self.model, backend, buffers, capacity, device, cache, provider, self.provide
        )
        return LiveLayers(
            self.model, {name: kind.load(resources) for name, kind in self.kinds.items()}, self.providers
        )

    def close(self) -> None:
        for provider in self._active.values():
            provider.deactivate()
        self._active.clear()


class LiveLayers:
    """Every layer of a loaded model; layers of one kind share one object. `providers`: one per layer."""

    def __init__(
        self, model: ModelSpec, kinds: Mapping[str, LoadedLayers], providers: Sequence[AttentionProvider]
    ) -> None:
        self.providers = providers
        self._kinds = kinds
        self._layers = tuple(kinds[spec.kind] for spec in model.each_layer)
        self._lends_rows = model.lends_rows

    def __getitem__(self, layer: int) -> LoadedLayers:
        return self._layers[layer]

    def settle(self, policy: PrefillPolicy[Any], past: int, n: int) -> None:
        """As `LoadedLayers.settle`, for all kinds."""
        for layers in self._kinds.values():
            layers.settle(policy, past, n)

    @property
    def rows_together(self) -> bool:
        """Whether between two dense graphs of a decode step there is nothing but attention."""
        return all(layers.in_step_graph for layers in self._kinds.values())

    @property
    def in_step_graph(self) -> bool:
        """Whether a decode step may be one graph: all layers allow it, and their kernels run in graphs."""
        # The graph's attention appends a row in every layer.
        return self.rows_together and self.native and not self._lends_rows

    @property
    def native(self) -> bool:
        """Whether attention of all layers runs on kernels of which a row's bits do not depend on other rows."""
        return all(provider.in_graphs for provider in self.providers)

    @property
    def one_row_because(self) -> str | None:
        """The first reason that a kind has: see `LoadedLayers`."""
        if self._lends_rows:
            return "layers without keys of their own take a row at a time"
        reasons = (layers.one_row_because for layers in self._kinds.values())
        return next((reason for reason in reasons if reason), None)

    @property
    def divisible(self) -> bool:
        """Whether all layers allow a prompt to be read in pieces."""
        return all(layers.divisible for layers in self._kinds.values())

    @property
    def nbytes(self) -> int:
        return sum(layers.nbytes for layers in self._kinds.values())

    def report(self) -> dict[str, Any]:
        """How the last prompt was read, by option; None for options that no layer here has."""
        found: dict[str, Any] = {option.name: None for option in layer_options()}
        for layers in self._kinds.values():
            found |= layers.report()
        return found
