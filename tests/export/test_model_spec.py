"""What the manifest says of a model's weights, beside the tensors of the checkpoint."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest
from tests.family_models import save

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.exporter import ExportOptions, model_spec

NAME = re.compile(r"model\.layers\.(\d+)\.mlp\.(?:(experts\.\d+)|\w+).*weight$")
FAMILIES = ["smollm3", "nemotron_h", "nemotron_h-mixed", "granitemoehybrid-mixed", "lfm2_moe"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_meets_the_mlps_that_there_are(tmp_path: Path, family: str) -> None:
    """Of the experts of a layer those that are chosen."""
    opened = open_checkpoint(str(save(tmp_path, family)))
    plan, share = opened.plan, 1.0
    model = model_spec(opened, "float32", ExportOptions("", tmp_path).formats(opened))
    if model.experts is not None:
        share = model.experts.chosen / model.experts.count
    met = [0.0] * len(plan.layers)
    for tensor, shape in checkpoint_tensors(plan).items():
        if (found := NAME.match(tensor)) and len(shape) == 2:
            met[int(found[1])] += prod(shape) * (share if found[2] else 1)
    assert model.each_mlp == tuple(map(round, met))
    assert type(model).model_validate(model.model_dump()) == model
    assert bool(model.mlp_weights) == family.startswith("nemotron_h"), "written where it does not follow"
    unchosen = [
        prod(shape) * (1 - share)
        for tensor, shape in checkpoint_tensors(plan).items()
        if (found := NAME.match(tensor)) and found[2]
    ]
    if model.experts is not None:
        experts = model.experts
        each = experts.matrices * experts.size * model.hidden_size
        assert experts.layers * (experts.count - experts.chosen) * each == round(sum(unchosen))
