"""A row's result in a dense graph does not depend on how many rows are beside it, in any dense form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests import bundles, latent_models

from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import GraphSpec

MOST = 1024
COUNTS = (1, 2, 3, 6, 7, 16, 17, 128)
BOUND = 1e-5  # of the largest result: ONNX Runtime's own products may add in another order
FORMS = [
    ("", {"dense_form": "native", "dense_precision": "float32"}),
    ("", {"dense_form": "native", "dense_precision": "bfloat16"}),
    ("", {"dense_form": "exact"}),
    *(
        (weights, {"dense_form": form})
        for weights in ("int8", "int4")
        for form in ("native", "blocks", "exact")
    ),
]


def sizes(shape: Any, rows: int) -> list[int]:
    return [rows if isinstance(size, str) else int(size) for size in shape]


def check(folder: Path, options: dict[str, Any]) -> None:
    manifest = Bundle.open(folder).manifest
    layer, head = manifest.dense_graphs()[1], manifest.dense_graphs()[-1]
    with Generator.load(folder, context=MOST, threads=2, device="cpu", **options) as generator:
        backend = generator.loaded.backend
        for graph, most in ((layer, MOST), (head, 17)):
            inputs = random_inputs(graph, most)

            def run(first: int, count: int, graph: GraphSpec = graph, inputs: Any = inputs) -> Any:
                given = {name: array[first : first + count] for name, array in inputs.items()}
                made = {one.name: np.empty(sizes(one.shape, count), one.dtype) for one in graph.outputs}
                backend.infer(graph.name, given, made)
                return made

            every = run(0, most)
            for count in (count for count in COUNTS if count <= most):
                for first in {0, (most - count) // 2, most - count}:
                    for name, some in run(first, count).items():
                        of_all = every[name][first : first + count]
                        if options["dense_form"] == "native":
                            np.testing.assert_array_equal(some, of_all, f"{graph.name} {name} {count}")
                        else:
                            worst = np.abs(some - of_all).max() / np.abs(every[name]).max()
                            assert worst <= BOUND, (graph.name, name, count)


def random_inputs(graph: GraphSpec, rows: int) -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(1)
    return {one.name: draw.standard_normal(sizes(one.shape, rows)).astype(one.dtype) for one in graph.inputs}


@pytest.mark.parametrize(("weights", "options"), FORMS)
def test_rows_beside_change_no_row(shared_folder: Path, weights: str, options: dict[str, Any]) -> None:
    chosen = {"weights": weights} if weights else {}
    check(
        bundles.named(shared_folder, "llama-g2-d64-llama3", weights and f"-{weights}", **chosen)[1], options
    )


@pytest.mark.parametrize("form", ["native", "exact"])
def test_rows_beside_change_no_row_of_a_mixture(shared_folder: Path, form: str) -> None:
    check(latent_models.golden_bundle(shared_folder, "v3_yarn_moe"), {"dense_form": form})
