"""Rotations of config.json: transformers' to the bit, each up to the context where it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.export.test_export_config import LONGROPE, SCALED, read
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from h2o_runtime.errors import ConfigError

LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
YARNS = (
    YARN,
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707},
    {**YARN, "attention_factor": 0.9},
    {"rope_type": "yarn", "factor": 4.0},  # the original context is then the whole one
    {**YARN, "factor": None},  # and the factor what the contexts say
)


@pytest.mark.parametrize("head_size", [16, 48, 64, 80, 100, 128, 192, 256])
@pytest.mark.parametrize("scaling", [{"rope_type": "default"}, LINEAR, SCALED, *YARNS])
def test_frequencies_are_transformers_to_the_bit(scaling: dict[str, Any], head_size: int) -> None:
    parameters = {**scaling, "rope_theta": 50000.0}
    theirs = LlamaRotaryEmbedding(
        AutoConfig.for_model(
            "llama", head_dim=head_size, rope_parameters=parameters, max_position_embeddings=8192
        )
    )
    rope = read(rope_parameters=parameters, max_position_embeddings=8192).rope
    got = rope.inverse_frequencies(head_size)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, theirs.inv_freq.numpy())
    assert rope.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("name", ["longrope", "su", "yarn"])
@pytest.mark.parametrize("context", [8192, 1025, 1024, 7])
def test_longrope_takes_the_list_for_the_context(context: int, name: str) -> None:
    theirs = AutoConfig.for_model(
        "llama", head_dim=32, rope_parameters=LONGROPE | {"rope_theta": 5e4}, max_position_embeddings=8192
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu", seq_len=context)
    scaling = {key: value for key, value in LONGROPE.items() if key != "rope_type"} | {"type": name}
    config = read(rope_theta=5e4, rope_scaling=scaling, max_position_embeddings=8192).limited(context)
    np.testing.assert_array_equal(config.rope.inverse_frequencies(32), expected.numpy())
    assert config.rope.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    assert config.max_position_embeddings == context


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize("context", [8192, 1024])
@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE, LINEAR, SCALED, YARN])
def test_a_rotation_ends_where_transformers_has_another_one(scaling: dict[str, Any], context: int) -> None:
    parameters = scaling | {"rope_theta": 5e4}
    theirs = AutoConfig.for_model(
        "llama", head_dim=32, rope_parameters=parameters, max_position_embeddings=8192
    )
    frequencies = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    here, beyond = (frequencies(theirs, "cpu", seq_len=length)[0] for length in (context, 16_384))
    config = read(rope_theta=5e4, rope_scaling=scaling, max_position_embeddings=8192).limited(context)
    assert config.rope.ends == (not torch.equal(here, beyond))
    np.testing.assert_array_equal(config.rope.inverse_frequencies(32), here.numpy())


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="context must be at most 2,048 tokens, the model's limit, but is 2,049"
    ):
        read().limited(2049)
    with pytest.raises(
        ConfigError, match="limit, but is 2,049; beyond it RoPE scaling 'dynamic' would begin"
    ):
        read(rope_scaling=DYNAMIC).limited(2049)
