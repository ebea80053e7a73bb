"""What sparse prefill can save at most, where few layers attend to everything."""

from __future__ import annotations

from typing import Any

import pytest

from h2o_cli.arithmetic import attention_flop, dense_flop, policy_share
from h2o_cli.run.report import little_to_save
from h2o_runtime.layer_spec import LayerSpec, StateSizes
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import Full, Query

SIZES: dict[str, Any] = {"query_heads": 4, "kv_heads": 2, "head_size": 16, "scale": 0.25}
ROW: dict[str, Any] = {**SIZES, "value_size": 16, "query_size": 16, "out_size": 16, "rotary_size": 16}
ATTENDS = LayerSpec(kind="grouped-query", **ROW)
CONVOLVES = LayerSpec(kind="short-convolution", **ROW, state=StateSizes({"width": 64, "tail": 2}))


SPARSE = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)


def model(*specs: LayerSpec) -> ModelSpec:
    return ModelSpec(
        family="lfm2",
        hidden_size=64,
        layers=len(specs),
        intermediate_size=96,
        vocab_size=512,
        max_position_embeddings=4096,
        parameters=1,
        tied=True,
        dtype="float32",
        layer_specs=specs,
        **SIZES,
    )


def test_layers_with_a_state_compare_no_keys() -> None:
    found = model(ATTENDS, CONVOLVES, CONVOLVES)
    assert attention_flop(found, Full(), 100) == 4 * 4 * 16 * (100 * 101 // 2)
    assert attention_flop(model(CONVOLVES, CONVOLVES, ATTENDS), Full(), 100) == 4 * 4 * 16 * 100
    each = 3 * 64 * 64 + 3 * 64, 64 * 64 + 3 * 64 * 96  # of a convolution, and behind it
    more = dense_flop(model(CONVOLVES, ATTENDS), 11) - dense_flop(model(ATTENDS), 11)
    assert more == 2 * 11 * sum(each)


def test_work_behind_attention_is_what_each_layer_has() -> None:
    """As Nemotron-H, where most layers have an MLP without a gate, or none."""
    found = model(ATTENDS, CONVOLVES, ATTENDS)
    own = found.model_copy(update={"mlp_weights": (2 * 64 * 96, 0, 2 * 64 * 96)})
    less = 11 * 64 * 96 + 11 * 3 * 64 * 96 + 64 * 96  # of the last layer one token alone
    assert dense_flop(found, 11) - dense_flop(own, 11) == 2 * less


def test_the_share_is_of_layers_that_policies_handle() -> None:
    found = model(ATTENDS, CONVOLVES, CONVOLVES)
    for tokens in (10, 1000):
        attention = attention_flop(found, Full(), tokens)
        assert policy_share(found, tokens) == attention / (attention + dense_flop(found, tokens))
    window = ATTENDS.model_copy(update={"window": 32})
    assert policy_share(model(window, window, CONVOLVES), 1000) == 0


@pytest.mark.parametrize(
    ("specs", "policy", "tokens", "says"),
    [
        (
            (ATTENDS, CONVOLVES, CONVOLVES),
            SPARSE,
            100,
            "1 of 3 layers see the whole prompt; their attention is 8 % of",
        ),
        ((ATTENDS, CONVOLVES, CONVOLVES), SPARSE, 4000, None),  # most of the work
        ((ATTENDS, CONVOLVES, CONVOLVES), Full(), 100, None),
        ((ATTENDS, CONVOLVES, CONVOLVES), SPARSE, 20, None),  # one chunk
        ((ATTENDS, CONVOLVES), SPARSE, 100, None),
    ],
)
def test_that_little_can_be_saved_is_said(
    specs: tuple[LayerSpec, ...], policy: Any, tokens: int, says: str | None
) -> None:
    found = little_to_save(model(*specs), policy, tokens)
    assert found is None if says is None else found is not None and found.startswith(says)
