"""What an export makes of a configuration: the kind, the sizes and the description of every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from h2o_export.architecture.config import ModelConfig
from h2o_export.layers import LayerKind, kind_named
from h2o_runtime.layer_spec import LayerSpec


@dataclass(frozen=True)
class LayerPlan:
    """One layer. `config` has its own sizes; `spec` is what the manifest says of it."""

    kind: LayerKind
    config: ModelConfig
    spec: LayerSpec


@dataclass(frozen=True)
class Plan:
    """Computed once for a configuration, and passed to all that export it.

    rotary_sizes  elements of a head that each table of angles rotates, in the layers with the most
    draft         a model of the draft layer alone; None: there is none
    """

    config: ModelConfig
    layers: tuple[LayerPlan, ...]
    rotary_sizes: tuple[int, ...]
    draft: Plan | None

    @classmethod
    def of(cls, config: ModelConfig) -> Plan:
        """Raises UnsupportedModelError for a layer kind without a name here."""
        draft = None if config.draft is None else _plan(_draft_config(config, config.draft.kind))
        return _plan(config, draft)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Of every layer, and last of the draft layer, if there is one."""
        own = tuple(layer.kind for layer in self.layers)
        return own if self.draft is None else own + self.draft.kinds


def _plan(config: ModelConfig, draft: Plan | None = None) -> Plan:
    layers = tuple(_layer(config, number) for number in range(config.layers))
    specs = [layer.spec for layer in layers]
    sizes = (
        max(spec.rotary_size for spec in specs if spec.rotation == table)
        for table in range(len(config.rotations))
    )
    return Plan(config, layers, tuple(sizes), draft)


def _layer(config: ModelConfig, number: int) -> LayerPlan:
    kind, sizes = kind_named(config.kinds[number]), config.at(number)
    spec = kind.spec(sizes).model_copy(update={"rotation": config.rotation(number)})
    return LayerPlan(kind, sizes, spec)


def _draft_config(config: ModelConfig, kind: str) -> ModelConfig:
    """A model of the draft layer alone. It has a mixture of experts where any layer has one."""
    experts = None if config.experts is None else replace(config.experts, layers=frozenset({0}))
    return replace(config, layers=1, kinds=(kind,), ropes=config.ropes[:1], experts=experts)
