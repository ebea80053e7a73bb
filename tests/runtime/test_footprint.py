"""Memory inside dense graphs, as it is estimated."""

from __future__ import annotations

from tests.model_specs import grouped

from h2o_runtime.execution.footprint import footprint
from h2o_runtime.model_spec import ExpertsSpec, ModelSpec
from h2o_runtime.policies.prefill import Full

ROWS = 64  # of a call
MODEL = grouped(4, 2, 2)


def scratch(model: ModelSpec, native_products: bool) -> int:
    """Elements per row."""
    policy, size = Full(), 4
    found = footprint(model, 256, policy, most_rows=ROWS, native_products=native_products)
    return found.scratch // ROWS // size


def test_experts_keep_their_outputs_and_in_graphs_their_inputs_too() -> None:
    experts = ExpertsSpec(layers=1, count=64, chosen=8, size=16, shared_size=0)
    mixture = MODEL.model_copy(update={"intermediate_size": 16, "experts": experts})
    around = 2 * MODEL.hidden_size  # the normalised rows and the residual
    assert scratch(mixture, native_products=True) == 2 * 8 * MODEL.hidden_size + around
    assert scratch(mixture, native_products=False) == 4 * 8 * MODEL.hidden_size + around


def test_an_mlp_counts_the_same_either_way() -> None:
    for native_products in (True, False):
        expected = 4 * MODEL.intermediate_size + 2 * MODEL.hidden_size
        assert scratch(MODEL, native_products) == expected
