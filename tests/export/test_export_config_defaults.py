"""What config.json omits, or says in another way, is read as transformers reads it.

Transformers writes out what it has read, with every default. Both must give the same model here.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
from tests.export.test_export_random_configs import SAID
from tests.random_configs import OWN_SIZES, SIZES, draw
from transformers import AutoConfig

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.families import FAMILIES
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

RANDOM = 6
NEEDED: dict[str, dict[str, Any]] = {  # with the defaults such models cannot run
    "deepseek_v2": {"num_experts_per_tok": 2},
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv"] * 31 + ["full_attention"]},
    "granitemoehybrid": {"layer_types": ["linear_attention"] * 31 + ["full_attention"]},
}
WITHIN = {"model_type", "architectures", "rope_parameters"}  # rotations are compared as a whole


def as_transformers_reads(raw: dict[str, Any]) -> dict[str, Any]:
    """Every key of its configuration, also those with defaults."""
    model_type = raw["model_type"]
    theirs = AutoConfig.for_model(
        **{**deepcopy(raw), "model_type": FAMILIES[model_type].built_as or model_type}
    )
    if not FAMILIES[model_type].named_rotations:
        theirs.standardize_rope_params()  # as its models do; settles which original context counts
    whole: dict[str, Any] = json.loads(theirs.to_json_string(use_diff=False))
    return whole | {"model_type": model_type}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_default_is_transformers(model_type: str) -> None:
    raw = {"model_type": model_type, **NEEDED.get(model_type, {})}
    assert ModelConfig.from_huggingface(raw) == ModelConfig.from_huggingface(as_transformers_reads(raw))


class Recorded(dict[str, Any]):
    """Notes which keys are read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_that_is_read_has_transformers_default(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has no effect beside the other defaults."""
    family = FAMILIES[model_type]
    whole = Recorded(family.completed({"model_type": model_type, **NEEDED.get(model_type, {})}))
    monkeypatch.setattr(type(family), "completed", lambda *_: whole)
    ModelConfig.from_huggingface({"model_type": model_type})
    theirs = type(AutoConfig.for_model(family.built_as or model_type))
    theta = (
        theirs.default_theta if isinstance(theirs.default_theta, float) else theirs.default_theta["global"]
    )
    defaults = {field.name: field.default for field in fields(theirs)} | {"rope_theta": theta}
    read = (whole.seen & defaults.keys()) - NEEDED.get(model_type, {}).keys() - WITHIN
    assert {"hidden_size", "tie_word_embeddings"} <= read
    ours = {key: whole.get(key) or None for key in read}
    assert ours == {key: defaults[key] or None for key in read}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_random_configs_are_read_as_transformers_reads_them(model_type: str) -> None:
    compared = 0
    for seed in range(RANDOM):
        raw = draw(seed, model_type)
        try:
            ours = ModelConfig.from_huggingface(raw)
        except (CheckpointError, UnsupportedModelError) as error:
            with pytest.raises(type(error)):
                ModelConfig.from_huggingface(as_transformers_reads(raw))
            continue
        assert ours == ModelConfig.from_huggingface(as_transformers_reads(raw)), raw
        compared += 1
    assert compared >= RANDOM // 3


@pytest.mark.parametrize("what", SAID)
def test_what_is_said_in_another_way(what: str) -> None:
    raw = {**SIZES, **OWN_SIZES, **SAID[what]}
    assert ModelConfig.from_huggingface(raw) == ModelConfig.from_huggingface(as_transformers_reads(raw))
