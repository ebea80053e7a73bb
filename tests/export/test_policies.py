"""What a bundle has of its policy, and how far one comes that nobody entered in the exporter's registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from tests import bundles

from h2o_cli.compare import main
from h2o_export import policies
from h2o_export.comparison.twin import float64_twin
from h2o_runtime import Generator
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.policies.prefill import PrefillPolicy, Query, Subquadratic, VerticalSlash

pytestmark = pytest.mark.timeout(600)
NAME = "llama-g2-d64-llama3"
SMALL = Query(chunk_size=48, batch_size=96, local=8, heavy=12)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the policy h2o were somebody's own."""
    monkeypatch.setattr(policies, "POLICIES", policies.PolicyEntries(group="none"))


def attention_graphs(bundle: Path) -> list[str]:
    return [graph.name for graph in Bundle.open(bundle).manifest.graphs if graph.kind == "attention"]


def compare(*args: Any) -> Any:
    done = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_policy_without_an_entry_is_exported_and_runs(
    unknown: None, shared_folder: Path, tmp_path: Path
) -> None:
    checkpoint, known = bundles.named(shared_folder, NAME)
    bundle = bundles.export(checkpoint, tmp_path / "own", prefill=SMALL)
    assert attention_graphs(bundle) == ["decode"]
    ids = bundles.random_ids(150)
    with Generator.load(bundle) as generator, Generator.load(known) as other:
        assert np.array_equal(generator.prefill(ids), other.prefill(ids, SMALL))


def test_it_is_compared_with_another_provider(unknown: None, shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, _ = bundles.named(shared_folder, NAME)
    bundle = bundles.export(checkpoint, tmp_path / "own", prefill=SMALL)
    flags = ("--stage", "attention", "--stage", "pipeline", "-n", 150, "--against", "functions")
    document = compare(bundle, *flags, "-ub", 48, "-b", 96, "--h2o-local", 8, "--h2o-heavy", 12)
    rows = [(row["stage"], row["graph"], row["reference"]) for row in document["rows"]]
    policy = "h2o score=query batch_size=96 chunk_size=48 local=8 heavy=12 queries=16 grow=512"
    assert rows == [
        ("attention", "decode", "float64"),
        ("attention", "decode", "float64"),
        ("pipeline", "full", "onnxruntime+functions"),
        ("pipeline", policy, "onnxruntime+functions"),
        ("pipeline", "full", "transformers"),
    ]
    assert (document["passed"], document["notes"]) == (True, [])


FEW_LINES = VerticalSlash(chunk_size=100, vertical=40, slash=60)
SMALL_WINDOW = Subquadratic(window=20, block=16)


@pytest.mark.parametrize("policy", [FEW_LINES, SMALL_WINDOW, SMALL], ids=lambda policy: policy.name)
def test_every_graph_of_a_policy_has_a_float64_twin(policy: PrefillPolicy[Any], tmp_path: Path) -> None:
    shape = AttentionShape(4, 2, 16, 0.25, np.dtype(np.float32))
    for graph in policies.policy_graphs(policy, shape):
        path = tmp_path / f"{graph.spec.name}.onnx"
        onnx.save(graph.model, path)
        onnxruntime.InferenceSession(float64_twin(path).SerializeToString())
