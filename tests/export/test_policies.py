"""What a bundle has of its policy, and how far one comes that nobody entered in the exporter's registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from click.testing import CliRunner
from tests import bundles
from tests.model_specs import grouped

from h2o_cli.compare import main
from h2o_export import policies
from h2o_export.comparison.twin import float64_twin
from h2o_export.policies.full import FullEntry
from h2o_export.policies.h2o.scores.query import QueryPass
from h2o_runtime import Generator
from h2o_runtime.attention import AttentionShape
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query, Subquadratic, VerticalSlash
from h2o_runtime.policies.prefill.h2o.query_tiles import BLOCK

pytestmark = pytest.mark.timeout(600)
NAME = "llama-g2-d64-llama3"
SMALL = Query(chunk_size=48, batch_size=96, local=8, heavy=12)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the policy h2o were somebody's own."""
    monkeypatch.setattr(policies, "POLICIES", policies.PolicyEntries(FullEntry, group="none"))


def attention_graphs(bundle: Path) -> list[str]:
    return [graph.name for graph in Bundle.open(bundle).manifest.graphs if graph.kind == "attention"]


def compare(*args: Any) -> Any:
    done = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("pick", [0, 1])
def test_a_near_tie_at_the_candidates_border_may_go_either_way(pick: int) -> None:
    """Blocks of keys come in pairs that are equal, and the border of the candidates is inside a pair. The first and
    the last of eight blocks always are candidates.
    """
    n, three = 8 * BLOCK, 3 * BLOCK
    policy = Query(chunk_size=n, tile=n, local=2, heavy=three - 2, candidates=three, dense_tail=0)
    draw = torch.Generator().manual_seed(4)
    q, pairs = torch.randn(1, 2 * n, 8, generator=draw), torch.randn(1, 4, 8 * BLOCK, generator=draw)
    k, model = pairs.repeat_interleave(2, dim=1).view(1, n, 8), grouped(1, 1)
    own = QueryPass(policy, model)
    chosen = own._choose(0, n, q[:, n:], k, n, own._candidates(0, q[:, n:], k, n))[0].nonzero()[:, 0]
    blocks = {row // BLOCK for row in chosen.tolist()}
    (lone,) = (block for block in blocks if 0 < block < 7 and block ^ 1 not in blocks)
    picked = sorted({*blocks, (lone, lone ^ 1)[pick]} - {(lone ^ 1, lone)[pick]})
    sets = [BLOCK * block + row for block in picked for row in range(BLOCK)]
    rule = QueryPass(policy, model, np.array(sets, np.int32)[None, None, None])
    rule._attend(0, q, torch.cat([k, k], 1), torch.cat([k, k], 1))
    assert (rule.wrong, rule.verdict().sound) == (0, True)
    strange = next(BLOCK * block for block in range(8) if block not in blocks and block ^ 1 != lone)
    rule = QueryPass(
        policy, model, np.array(sorted({*sets, strange} - {sets[0]}), np.int32)[None, None, None]
    )
    rule._attend(0, q, torch.cat([k, k], 1), torch.cat([k, k], 1))
    assert rule.wrong == 2


def test_full_attention_needs_decode_alone(shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, _ = bundles.named(shared_folder, NAME)
    bundle = bundles.export(checkpoint, tmp_path / "full", prefill=Full())
    assert attention_graphs(bundle) == ["decode"]
    document = compare(bundle, "--stage", "attention")
    assert [(row["graph"], row["passed"]) for row in document["rows"]] == [("decode", True)]


def test_a_policy_without_an_entry_is_exported_and_runs(
    unknown: None, shared_folder: Path, tmp_path: Path
) -> None:
    checkpoint, known = bundles.named(shared_folder, NAME)
    bundle = bundles.export(checkpoint, tmp_path / "own", prefill=SMALL)
    assert attention_graphs(bundle) == ["decode"]
    ids = bundles.random_ids(150)
    with Generator.load(bundle) as generator, Generator.load(known) as other:
        assert np.array_equal(generator.prefill(ids), other.prefill(ids, SMALL))


def test_comparing_it_says_that_nothing_independent_is_there(
    unknown: None, shared_folder: Path, tmp_path: Path
) -> None:
    checkpoint, _ = bundles.named(shared_folder, NAME)
    bundle = bundles.export(checkpoint, tmp_path / "own", prefill=SMALL)
    flags = ("--stage", "attention", "--stage", "pipeline", "-n", 150, "--against", "functions")
    document = compare(bundle, *flags, "-ub", 48, "-b", 96, "--h2o-local", 8, "--h2o-heavy", 12)
    rows = [(row["stage"], row["graph"], row["reference"]) for row in document["rows"]]
    policy = "h2o score=query batch_size=96 chunk_size=48 local=8 heavy=12 tile=64 queries=16 grow=512"
    assert rows == [
        ("attention", "decode", "float64"),
        ("attention", "decode", "float64"),
        ("pipeline", "full", "onnxruntime+functions"),
        ("pipeline", policy, "onnxruntime+functions"),
        ("pipeline", "full", "transformers"),
    ]
    assert document["passed"]
    assert document["notes"] == [
        f"no comparison of {policy} with the checkpoint: the policy has no independent reference; "
        "`against` compares two attention providers"
    ]


FEW_LINES = VerticalSlash(chunk_size=100, vertical=40, slash=60)
SMALL_WINDOW = Subquadratic(window=20, block=16)
GUARDED = Query(chunk_size=48, batch_size=96, local=8, heavy=12, tile=16, checks=3, missed=0.04)


def test_the_guard_lets_some_chunks_see_everything(shared_folder: Path) -> None:
    with Generator.load(bundles.named(shared_folder, NAME)[1]) as generator:
        generator.prefill(bundles.random_ids(300), GUARDED)
        seen = generator.seen()
        assert seen is not None
        assert 0.1 < seen.widened < 0.9


@pytest.mark.parametrize("policy", [FEW_LINES, SMALL_WINDOW, GUARDED], ids=lambda policy: policy.name)
def test_every_graph_of_a_policy_has_a_float64_twin(policy: PrefillPolicy[Any], tmp_path: Path) -> None:
    shape = AttentionShape(4, 2, 16, 0.25, np.dtype(np.float32))
    for graph in policies.policy_graphs(policy, shape):
        path = tmp_path / f"{graph.spec.name}.onnx"
        onnx.save(graph.model, path)
        onnxruntime.InferenceSession(float64_twin(path).SerializeToString())


@pytest.mark.parametrize("policy", [FEW_LINES, SMALL_WINDOW], ids=lambda policy: policy.name)
def test_a_sparse_policy_is_its_single_pass(policy: PrefillPolicy[Any], shared_folder: Path) -> None:
    bundle = bundles.named(shared_folder, NAME)[1]
    document = compare(bundle, "--stage", "pipeline", "-n", 300, "--prefill", policy)
    exact, sparse = document["rows"]
    assert exact["passed"]
    assert sparse["passed"]
    assert sparse["reference"] == "single pass"
    assert sparse["graph"].startswith(policy.name)
