"""The toy score rule as exporter and comparison know it, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import NodeProto
from torch import Tensor
from toy_score import EveryKth

from h2o_export.attention_graphs.graph import standard
from h2o_export.policies.h2o.base import ScoreEntry
from h2o_export.policies.h2o.single_pass import ChainPass
from h2o_export.policies.h2o.steps import ChainPhase2, ChunkRows
from h2o_runtime.attention import AttentionProvider, AttentionShape
from h2o_runtime.model_spec import ModelSpec


@dataclass(frozen=True)
class EveryKthPhase2(ChainPhase2):
    policy: EveryKth

    def update_nodes(self, shape: AttentionShape) -> list[NodeProto]:
        """The scores come as an input: nothing that attention finds changes them."""
        return [standard("Identity", ("score",), "score_next")]

    def update(self, provider: AttentionProvider, chunk: ChunkRows, rows: Any, score: Any) -> bool:
        rows[:] = 0
        return True


@dataclass
class EveryKthPass(ChainPass[EveryKth]):
    def update(self, score: Tensor, dots: Tensor, intra: Tensor, inter: Tensor) -> None:
        score[:] = (torch.arange(score.shape[1]) % self.policy.every == 0).double()


class EveryKthEntry(ScoreEntry[EveryKth]):
    policy = EveryKth

    def phase2(self, policy: EveryKth) -> EveryKthPhase2:
        return EveryKthPhase2(policy)

    def single_pass(self, policy: EveryKth, model: ModelSpec, sets: NDArray[np.int32]) -> EveryKthPass:
        return EveryKthPass(policy, model, sets)
