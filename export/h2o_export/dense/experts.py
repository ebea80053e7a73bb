"""Mixtures of experts: which experts see a token, and what they say of it.

In a graph the rows of a call are put in the order of their experts, cut into the rows of each expert, and put
back in order behind them. An expert that nobody chose has none, and its products touch no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from h2o_export.architecture.config import ExpertsConfig, ModelConfig
from h2o_export.architecture.families.family import Activation
from h2o_export.dense.mlp import feed_forward
from h2o_runtime.operators import DOMAIN

PLACEHOLDER = ("h2o.export", "Experts")  # stands in a traced graph for what `lay_out_experts` puts there
UNGATED = "relu2"  # the activation of experts without a gate
LEFT_OUT = float(torch.finfo(torch.float32).min)


class MixtureOfExperts(nn.Module):
    """x [n, D] → [n, D]: the weighted sum of what a token's experts say, and what shared ones do."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.experts is not None
        self.config = config.experts
        self.gate = Router(config.hidden_size, config.experts)
        self.experts = nn.ModuleList(
            Expert(config.hidden_size, config.experts, gated=config.activation != UNGATED)
            for _ in range(config.experts.count)
        )
        self.activation = config.activation
        if config.experts.shared_gate:  # the names of Qwen, and of DeepSeek
            self.shared_expert = feed_forward(config, config.experts.shared_size)
            self.shared_expert_gate = nn.Linear(config.hidden_size, 1, bias=False)
        elif config.experts.shared_size:
            self.shared_experts = feed_forward(config, config.experts.shared_size)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x)  # float32 [n, k], int64 [n, k]
        out = spoken(self.experts, x, weights, chosen, self.config, self.activation)
        if self.config.shared_gate:
            out = out + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        elif self.config.shared_size:
            out = out + self.shared_experts(x)
        return out


def spoken(
    experts: nn.ModuleList,
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    config: ExpertsConfig,
    activation: Activation,
) -> Tensor:
    """x [n, D] → [n, D], the sum of what experts say of it.

    chosen, weights  those that are asked, int64 [n, k], and how much each counts, float32 [n, k]
    """
    projections: list[Any] = [projection for expert in experts for projection in expert.children()]
    weighed = [projection.weight for projection in projections]
    biases = [projection.bias for projection in projections] if config.biased else []
    gate = config.clamped
    attributes = {} if gate is None else {"limit": gate.limit, "gain": gate.gain}
    said = torch.onnx.ops.symbolic(
        "::".join(PLACEHOLDER),
        (x, chosen, *weighed, *biases),
        {"experts": config.count, "gate": _gate(config, activation), **attributes},
        dtype=x.dtype,
        shape=(x.shape[0], config.chosen, x.shape[1]),
        version=1,
    ).to(x.device)  # the tracer puts it elsewhere
    out: Tensor = (said.float() * weights.unsqueeze(2)).sum(dim=1).to(x.dtype)
    return out


def _gate(config: ExpertsConfig, activation: Activation) -> str:
    """The operator between an expert's matrices, or UNGATED."""
    if config.clamped is not None:
        return "ClampedSwiGLU"
    return {"silu": "SwiGLU", "gelu": "GeGLU", UNGATED: UNGATED}[activation]


class Router(nn.Module):
    """x [n, D] → weights float32 [n, k] and experts int64 [n, k]; scores are computed in float32."""

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.count, hidden_size))
        if config.biased:
            self.bias = nn.Parameter(torch.empty(config.count))
        if config.router == "corrected":
            self.moe_statics = Correction(config.count)
        if config.router == "sigmoid":
            self.e_score_correction_bias = nn.Parameter(torch.empty(config.count))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        bias = self.bias.float() if config.biased else None
        logits = F.linear(x.float(), self.weight.float(), bias)  # [n, E]
        if config.router == "chosen":
            best = logits.topk(config.chosen, dim=-1)
            return best.values.softmax(dim=-1), best.indices
        if config.router == "softmax":
            scores = logits.softmax(dim=-1)
            choice = self._limited(scores, 1, 0.0)
        elif config.router == "corrected":
            scores = logits.softmax(dim=-1)
            choice = scores + self.moe_statics.e_score_correction_bias
        else:
            scores = logits.sigmoid()
            choice = self._limited(scores + self.e_score_correction_bias, 2, LEFT_OUT)
        chosen = choice.topk(config.chosen, dim=-1).indices
        weights = scores.gather(1, chosen)
        if config.normalized:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + config.added)
        return weights * config.factor, chosen

    def _limited(self, scores: Tensor, best: int, left_out: float) -> Tensor:
        """Scores [n, E], those of all but the best groups replaced; a group counts what its `best` experts do."""
        config = self.config
        if not config.limited:
            return scores
        grouped = scores.view(-1, config.groups, config.group_size)
        groups = grouped.topk(best, dim=-1).values.sum(dim=-1)  # [n, G]
        found = groups.topk(config.chosen_groups, dim=-1).indices
        in_best_groups = torch.zeros_like(groups).scatter(1, found, 1.0)
        return torch.where(in_best_groups.unsqueeze(2) > 0, grouped, left_out).flatten(1)


class Correction(nn.Module):
    """A learned bias of scores, [1, E]."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.e_score_correction_bias = nn.Parameter(torch.empty(1, count))


class Expert(nn.Module):
    """The matrices of one expert; what multiplies with them, in this order, is laid out in the graph."""

    def __init__(self, hidden_size: int, config: ExpertsConfig, gated: bool = True) -> None:
        super().__init__()
        if gated:
            self.gate_proj = nn.Linear(hidden_size, config.size, config.biased)
        self.up_proj = nn.Linear(hidden_size, config.size, config.biased)
        self.down_proj = nn.Linear(config.size, hidden_size, config.biased)


def lay_out_experts(model: ir.Model) -> None:
    """Put standard operators where a traced graph has the placeholder."""
    for node in tuple(model.graph):
        if (node.domain, node.op_type) == PLACEHOLDER:
            _Layout(model.graph, node).lay_out()
    model.opset_imports.pop(PLACEHOLDER[0], None)


class _Layout:
    """The nodes in place of one placeholder: x [n, D], chosen [n, k], matrices, biases → said [n, k, D]."""

    def __init__(self, graph: ir.Graph, placeholder: ir.Node) -> None:
        self.graph = graph
        self.placeholder = placeholder
        self.scope = str(placeholder.name).rpartition("/")[0] + "/experts"
        self.nodes: list[ir.Node] = []

    def lay_out(self) -> None:
        x, chosen, *rest = self.placeholder.inputs
        said = self.placeholder.outputs[0]
        assert said.shape is not None
        attributes = {name: attribute.value for name, attribute in self.placeholder.attributes.items()}
        count, (_, k, hidden) = attributes.pop("experts"), said.shape
        gate = (attributes.pop("gate"), attributes)
        each = 2 if gate[0] == UNGATED else 3
        matrices, biases = rest[: each * count], rest[each * count :]
        assert isinstance(k, int)
        assert isinstance(hidden, int)
        flat = self.add("Reshape", [chosen, self.integers("flat", [-1])], "chosen")
        rows = self.add("Shape", [flat], "rows")
        _, order = self.add_all("TopK", [flat, rows], ("sorted", "order"), axis=0, largest=0)
        tokens = self.add("Div", [order, self.integers("k", [k])], "tokens")
        sorted_rows = self.add("Gather", [x, tokens], "sorted_rows", axis=0)
        by_expert = self.add_all(
            "Split",
            [sorted_rows, self._counts(flat, count)],
            [f"{expert}/rows" for expert in range(count)],
            axis=0,
        )
        spoken = [
            self._expert(e, rows, matrices[each * e :][:each], biases[each * e :][:each], gate)
            for e, rows in enumerate(by_expert)
        ]
        together = self.add("Concat", spoken, "together", axis=0)
        _, back = self.add_all("TopK", [order, rows], ("places", "back"), axis=0, largest=0)
        in_order = self.add("Gather", [together, back], "in_order", axis=0)
        output = self.add("Reshape", [in_order, self.integers("slots", [-1, k, hidden])], "said")
        self._replace(said, output)

    def _counts(self, flat: ir.Value, count: int) -> ir.Value:
        """How many rows each expert has, int64 [E]."""
        column = self.add("Unsqueeze", [flat, self.integers("last", [1])], "column")
        same = self.add("Equal", [column, self.integers("each", list(range(count)))], "same")
        ones = self.add("Cast", [same], "ones", to=int(ir.DataType.INT64))
        return self.add("ReduceSum", [ones, self.integers("first", [0])], "counts", keepdims=0)

    def _expert(
        self,
        expert: int,
        rows: ir.Value,
        matrices: Sequence[ir.Value | None],
        biases: Sequence[ir.Value | None],
        gate: tuple[str, dict[str, float]],
    ) -> ir.Value:
        def product(x: ir.Value, which: int) -> ir.Value:
            given = [x, matrices[which], *biases[which : which + 1]]
            module = ("gate_proj", "up_proj", "down_proj")[which - len(matrices)]
            return self.add("Gemm", given, f"{expert}/{module}/Gemm", transB=1)

        name, attributes = gate
        if name == UNGATED:
            positive = self.add("Relu", [product(rows, 0)], f"{expert}/Relu")
            return product(self.add("Mul", [positive, positive], f"{expert}/Mul"), 1)
        gated = [product(rows, 0), product(rows, 1)]
        inner = self.add(name, gated, f"{expert}/{name}", domain=DOMAIN, **attributes)
        return product(inner, 2)

    def integers(self, name: str, values: list[int]) -> ir.Value:
        name = f"{self.scope}/{name}"
        tensor = ir.tensor(values, dtype=ir.DataType.INT64, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape([len(values)]), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.initializers.add(value)
        return value

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        domain: str = "",
        **attributes: float,
    ) -> ir.Value:
        return self.add_all(op_type, inputs, (name,), domain, **attributes)[0]

    def add_all(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        names: Sequence[str],
        domain: str = "",
        **attributes: float,
    ) -> tuple[ir.Value, ...]:
        node = ir.node(
            op_type,
            inputs,
            attributes,
            domain=domain,
            num_outputs=len(names),
            name=f"{self.scope}/{names[-1]}",
        )
        for value, name in zip(node.outputs, names, strict=True):
            value.name = f"{self.scope}/{name}"
        self.nodes.append(node)
        return tuple(node.outputs)

    def _replace(self, said: ir.Value, output: ir.Value) -> None:
        output.shape, output.type = said.shape, said.type
        self.graph.insert_before(self.placeholder, self.nodes)
        said.replace_all_uses_with(output)
        self.graph.remove(self.placeholder, safe=True)
