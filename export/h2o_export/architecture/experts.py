"""Mixtures of experts, as `config.json` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_export.architecture.families import Family, Router
from h2o_export.architecture.values import integer, number
from h2o_runtime.errors import CheckpointError, UnsupportedModelError


@dataclass(frozen=True)
class ExpertsConfig:
    """Of each token a router chooses a few experts, which are small MLPs; shared ones see every token.

    count, chosen          experts of a layer, and how many of them see a token
    size, shared_size      rows inside an expert, and inside the shared ones together
    first_layer            layers before it have a plain MLP
    router                 scores are the softmax over experts, or a sigmoid of each and a learned bias that
                           counts for choosing alone
    groups, chosen_groups  experts are chosen from the best groups only
    normalized             weights of the chosen ones are divided by their sum
    factor                 and then multiplied by this
    """

    count: int
    chosen: int
    size: int
    shared_size: int
    first_layer: int
    router: Router
    groups: int
    chosen_groups: int
    normalized: bool
    factor: float

    @classmethod
    def read(cls, raw: dict[str, Any], family: Family, layers: int) -> ExpertsConfig | None:
        """Of a parsed `config.json`; None where every layer is dense. Raises as ModelConfig."""
        assert family.router is not None
        first = integer(raw, "first_k_dense_replace", family.first_dense, least=0)
        if first >= layers:
            return None
        _check_supported(raw, family.router)
        size, count = integer(raw, "moe_intermediate_size"), integer(raw, "n_routed_experts")
        grouped = family.router == "sigmoid" or raw.get("topk_method") == "group_limited_greedy"
        experts = cls(
            count=count,
            chosen=integer(raw, "num_experts_per_tok"),
            size=size,
            shared_size=size * integer(raw, "n_shared_experts"),
            first_layer=first,
            router=family.router,
            groups=integer(raw, "n_group") if grouped else 1,
            chosen_groups=integer(raw, "topk_group") if grouped else 1,
            normalized=family.router == "sigmoid" and bool(raw.get("norm_topk_prob", True)),
            factor=number(raw, "routed_scaling_factor", 1.0 if family.router == "softmax" else 2.5),
        )
        experts._check()
        return experts

    @property
    def group_size(self) -> int:
        return self.count // self.groups

    @property
    def limited(self) -> bool:
        """Whether some groups are left out."""
        return self.chosen_groups < self.groups

    def _check(self) -> None:
        if self.count % self.groups or self.chosen_groups > self.groups:
            raise CheckpointError(
                f"config.json: {self.count} experts (n_routed_experts) in {self.groups} groups (n_group), of which "
                f"{self.chosen_groups} are chosen (topk_group), is impossible; the file is damaged"
            )
        if self.chosen > self.group_size * self.chosen_groups:
            raise CheckpointError(
                f"config.json: num_experts_per_tok is {self.chosen}, and only "
                f"{self.group_size * self.chosen_groups} experts can be chosen; the file is damaged"
            )
        if self.router == "sigmoid" and self.limited and self.group_size < 2:
            raise CheckpointError(
                "config.json: groups of one expert (n_group) have no two best ones to be scored by; the file is "
                "damaged"
            )


def _check_supported(raw: dict[str, Any], router: Router) -> None:
    methods = ("greedy", "group_limited_greedy") if router == "softmax" else ("noaux_tc",)
    refused: tuple[tuple[str, tuple[Any, ...], str], ...] = (
        ("topk_method", (None, *methods), "choosing experts so"),
        ("scoring_func", (None, router), "such scores of experts"),
        ("moe_layer_freq", (None, 1), "a dense layer between mixtures"),
        ("norm_topk_prob", (None, False, *((True,) if router == "sigmoid" else ())), "normalizing a softmax"),
    )
    for key, harmless, what in refused:
        if raw.get(key) not in harmless:
            raise UnsupportedModelError(f"{what} ({key} = {raw[key]!r}) is not supported")
