"""Mixtures of experts, from `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from h2o_export.architecture.values import integer, number, refuse
from h2o_runtime.errors import CheckpointError

Router = Literal["softmax", "corrected", "sigmoid", "chosen"]


@dataclass(frozen=True)
class ClampedGate:
    """gate · sigmoid(gain · gate) · (up + 1), of a gate of at most `limit` and an up between -limit and limit."""

    limit: float
    gain: float


@dataclass(frozen=True)
class ExpertsConfig:
    """Of each token a router chooses a few experts, which are small MLPs; shared ones see every token.

    count, chosen          experts of a layer, and how many of them see a token
    size, shared_size      rows inside an expert, and inside the shared ones together; 0: none is shared
    layers                 those that have a mixture; the others have a plain MLP
    router                 scores are the softmax over experts, a sigmoid of each, or the softmax over the chosen;
                           a corrected softmax and sigmoids have a learned bias that counts for choosing alone
    groups, chosen_groups  experts are chosen from the best groups only
    normalized             weights of the chosen ones are divided by their sum, to which `added` is added
    factor                 and then multiplied by this
    biased                 whether the router and the projections of experts have biases
    shared_gate            whether a sigmoid of the token weighs what shared ones say
    clamped                what an expert does in place of SwiGLU; None: nothing
    beside_mlp             whether layers have their MLP as well, and norms around each of both
    """

    count: int
    chosen: int
    size: int
    layers: frozenset[int]
    router: Router
    shared_size: int = 0
    groups: int = 1
    chosen_groups: int = 1
    normalized: bool = False
    factor: float = 1.0
    biased: bool = False
    shared_gate: bool = False
    clamped: ClampedGate | None = None
    beside_mlp: bool = False
    added: float = 1e-20

    def __post_init__(self) -> None:
        """Raises CheckpointError."""
        if self.count % self.groups or self.chosen_groups > self.groups:
            raise CheckpointError(
                f"config.json: {self.count} experts (n_routed_experts) cannot form {self.groups} groups "
                f"(n_group) of which {self.chosen_groups} are chosen (topk_group); the file is damaged"
            )
        if self.chosen > self.group_size * self.chosen_groups:
            raise CheckpointError(
                f"config.json: num_experts_per_tok is {self.chosen}, and only "
                f"{self.group_size * self.chosen_groups} experts can be chosen; the file is damaged"
            )
        if self.router == "sigmoid" and self.limited and self.group_size < 2:
            raise CheckpointError(
                "config.json: n_group gives groups of one expert, but a group is scored by its two best experts; "
                "the file is damaged"
            )

    @property
    def group_size(self) -> int:
        return self.count // self.groups

    @property
    def limited(self) -> bool:
        """Whether some groups are left out."""
        return self.chosen_groups < self.groups


def read_routed(raw: dict[str, Any], router: Router, layers: int) -> ExpertsConfig | None:
    """DeepSeek's mixtures from a parsed `config.json`; None if every layer is dense. Raises as
    ModelConfig.
    """
    first = integer(raw, "first_k_dense_replace", least=0)
    if first >= layers:
        return None
    _check_supported(raw, router)
    size = integer(raw, "moe_intermediate_size")
    grouped = router == "sigmoid" or raw.get("topk_method") == "group_limited_greedy"
    return ExpertsConfig(
        count=integer(raw, "n_routed_experts"),
        chosen=integer(raw, "num_experts_per_tok"),
        size=size,
        shared_size=size * integer(raw, "n_shared_experts"),
        layers=frozenset(range(first, layers)),
        router=router,
        groups=integer(raw, "n_group") if grouped else 1,
        chosen_groups=integer(raw, "topk_group") if grouped else 1,
        normalized=router == "sigmoid" and bool(raw["norm_topk_prob"]),
        factor=number(raw, "routed_scaling_factor"),
    )


def _check_supported(raw: dict[str, Any], router: Router) -> None:
    methods = ("greedy", "group_limited_greedy") if router == "softmax" else ("noaux_tc",)
    refused = (
        ("topk_method", (None, *methods), "choosing experts so"),
        ("scoring_func", (None, router), "such scores of experts"),
        ("moe_layer_freq", (None, 1), "a dense layer between mixtures"),
        ("norm_topk_prob", (None, False, *((True,) if router == "sigmoid" else ())), "normalizing a softmax"),
    )
    refuse(raw, refused)
