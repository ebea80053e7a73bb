"""Which layers have a window, and which do not rotate, by the checkpoint's configuration."""

from __future__ import annotations

from typing import Any

import pytest
from tests.export.test_export_config import LLAMA, of_family

from h2o_export.architecture.config import ModelConfig
from h2o_export.architecture.families.family import FULL, SLIDING
from h2o_runtime.errors import CheckpointError, UnsupportedModelError

W, G, N = "window", "grouped-query", "grouped-query-without-rotation"


@pytest.mark.parametrize(
    ("family", "changes", "window", "kinds"),
    [
        ("mistral", {"sliding_window": 2047}, 2047, (W, W, W)),
        # Not mentioned: its default is a window of 4096.
        ("mistral", {"sliding_window": None, "max_position_embeddings": 4097}, 4096, (W, W, W)),
        ("ministral", {"sliding_window": 9, "layer_types": [SLIDING, FULL, SLIDING]}, 9, (W, G, W)),
        ("ministral", {"sliding_window": 9}, 9, (W, W, W)),
        ("phi3", {"sliding_window": 2047}, 2047, (W, W, W)),
        ("qwen2", {"sliding_window": 1024, "use_sliding_window": True}, 1024, (G, G, G)),  # from layer 28 on
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 8, (G, W, W)),
        (
            "qwen3",
            {"sliding_window": 8, "use_sliding_window": True, "layer_types": [SLIDING, FULL, FULL]},
            8,
            (W, G, G),
        ),
        ("qwen3", {"sliding_window": 32}, 0, (G, G, G)),  # no flag
        ("olmo3", {"sliding_window": 7, "num_hidden_layers": 5}, 7, (W, W, W, G, W)),
        ("exaone4", {"sliding_window": 7, "num_hidden_layers": 4}, 7, (W, W, W, N)),
        ("exaone4", {"sliding_window": 7, "layer_types": [FULL, SLIDING, FULL]}, 7, (N, W, N)),
    ],
)
def test_windows_are_read(family: str, changes: dict[str, Any], window: int, kinds: tuple[str, ...]) -> None:
    config = of_family(family, **changes)
    assert (config.window, config.kinds) == (window, kinds)


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("mistral", {"sliding_window": -1}, "sliding_window must be a positive integer"),
        ("ministral", {"layer_types": [SLIDING]}, "layer_types must name the kind of each of 3 layers"),
        (
            "ministral",
            {"layer_types": [SLIDING, FULL, "chunked_attention"]},
            "layer_types must name the kind",
        ),
    ],
)
def test_damaged_windows_are_named(family: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        of_family(family, **{"sliding_window": 8, **changes})


def test_windows_that_no_layer_serves_are_refused() -> None:
    windows = {"use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [0, 1, 1]}
    with pytest.raises(
        UnsupportedModelError, match="a sliding window in layers of the kind grouped-query-without"
    ):
        of_family("smollm3", **windows)


def test_queries_grow_in_texts_beyond_the_original_context() -> None:
    config = of_family("ministral3", max_position_embeddings=262_144, rope_parameters=None)
    for context, growth in ((None, 0.1), (16385, 0.1), (16384, 0.0)):
        assert config.limited(context).rope.query_growth == growth


def test_a_window_no_shorter_than_the_context_is_full_attention() -> None:
    assert of_family("mistral", sliding_window=2048).family == "mistral"
    long = {"use_sliding_window": True, "sliding_window": 32768, "layer_types": [SLIDING] * 3}
    assert of_family("qwen3", **long).kinds == (G, G, G)


def test_a_window_of_exaone_tells_which_layers_rotate() -> None:
    """Also where it is no shorter than the context."""
    types = [SLIDING, FULL, SLIDING]
    assert of_family("exaone4", sliding_window=2048, layer_types=types).kinds == (G, N, G)
    raw = {**LLAMA, "model_type": "exaone4", "architectures": None, "sliding_window": None}
    assert set(ModelConfig.from_huggingface(raw).kinds) == {G}


def test_layers_of_smollm3_that_do_not_rotate() -> None:
    rotated, unrotated = "grouped-query", "grouped-query-without-rotation"
    four = of_family("smollm3", num_hidden_layers=4)
    assert four.kinds == (rotated, rotated, rotated, unrotated)  # every fourth
    assert of_family("smollm3", no_rope_layer_interval=2).kinds == (rotated, unrotated, rotated)
    assert of_family("smollm3", no_rope_layers=[0, 1, 1, 0]).kinds == (unrotated, rotated, rotated)
    with pytest.raises(CheckpointError, match="no_rope_layers has 2 entries for 3 layers"):
        of_family("smollm3", no_rope_layers=[1, 1])
    with pytest.raises(CheckpointError, match="no_rope_layers must be a list of integers of 0 or more"):
        of_family("smollm3", no_rope_layers=[1, "0", 1])
