"""What h2o-compare does: its own truth is checked against the float64 NumPy references, written apart from it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto
from tests import bundles
from tests.model_specs import grouped
from tests.prefill import altered
from tests.reference import llama, operators

from h2o_export.checkpoints import open_checkpoint
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.files import compare_files
from h2o_export.comparison.pipeline import PipelineComparison
from h2o_export.comparison.report import compare_arrays
from h2o_export.comparison.twin import float64_twin, save_twin
from h2o_export.layers import layer_kind
from h2o_export.policies import policy_graphs
from h2o_export.policies.h2o.scores.colsum import ColumnSumPass
from h2o_export.policies.h2o.scores.window import VotePass
from h2o_export.policies.h2o.single_pass import SinglePass
from h2o_export.reference.streamed_model import StreamedModel
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.prefill import ColumnSum, Window
from h2o_runtime.policies.prefill.h2o import H2O

pytestmark = pytest.mark.timeout(240)
LLAMA3 = "llama-g2-d64-llama3"  # head size 64: the scale 1/8 is the same number in float32 and float64
EXACT = 1e-11  # float64 against float64, with an epsilon of 1e-5 that the graphs keep in float32
ANGLES = 1e-6  # cosines and sines rounded to float32 on one side

Feed = dict[str, NDArray[Any]]


def _run(model: Path, feed: Feed) -> Feed:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feed), strict=True))


def _run_twin(bundle: Path, graph: str, feed: Feed, folder: Path) -> Feed:
    return _run(save_twin(bundle / "onnx" / f"{graph}.onnx", folder), feed)


def _assert_close(actual: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    assert actual.dtype == np.float64
    assert bundles.relative_error(actual, expected) <= tolerance


# The float64 twin


@pytest.mark.parametrize("name", [LLAMA3, "qwen2-g4-d32", "qwen3-g2-d128"])
def test_the_twin_of_dense_graphs_computes_in_float64(name: str, shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, name)
    model = bundles.reference_model(checkpoint)
    draw = np.random.default_rng(1)
    n, d = 40, model.head_size
    ids = bundles.random_ids(n)
    positions = np.arange(n, dtype=np.int64)

    first = _run_twin(bundle, "dense_00", {"tokens": ids, "positions": positions}, tmp_path)
    embedded = model.weights["model.embed_tokens.weight"][ids]
    q, k, v = llama.project_qkv(model, 0, embedded, 0)
    _assert_close(first["residual_out"], embedded, 0)
    _assert_close(first["v"], v, EXACT)
    _assert_close(first["q"], q, ANGLES)
    _assert_close(first["k"], k, ANGLES)
    assert first["cos"].dtype == first["sin"].dtype == np.float32

    residual = draw.standard_normal(embedded.shape).astype(np.float32)
    attention = draw.standard_normal((n, model.query_heads, d)).astype(np.float32)
    rope = {"cos": first["cos"], "sin": first["sin"]}
    middle = _run_twin(bundle, "dense_01", {"attention": attention, "residual": residual, **rope}, tmp_path)
    hidden = llama.finish_layer(model, 0, residual.astype(np.float64), attention.astype(np.float64))
    q, k, v = llama.project_qkv(model, 1, hidden, 0)
    _assert_close(middle["residual_out"], hidden, EXACT)
    _assert_close(middle["v"], v, EXACT)
    _assert_close(middle["q"], q, ANGLES)
    _assert_close(middle["k"], k, ANGLES)

    last = _run_twin(bundle, "dense_02", {"attention": attention, "residual": residual}, tmp_path)
    hidden = llama.finish_layer(model, 1, residual.astype(np.float64), attention.astype(np.float64))
    _assert_close(last["logits"], llama.logits_of(model, llama.final_norm(model, hidden)), EXACT)


def test_rope_angles_stay_float32_in_the_twin(shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    positions = np.array([0, 1, 777, 4095, 131071], np.int64)
    feed = {"tokens": np.zeros(5, np.int64), "positions": positions}
    graph = _run(bundle / "onnx" / "dense_00.onnx", feed)
    twin = _run_twin(bundle, "dense_00", feed, tmp_path)
    frequencies = open_checkpoint(str(checkpoint)).config.rope.inverse_frequencies(64)
    angles = positions.astype(np.float32)[:, None] * frequencies  # rounded to float32, as it was trained
    for name, function in (("cos", np.cos), ("sin", np.sin)):
        assert np.array_equal(graph[name], twin[name])
        assert np.abs(twin[name] - function(angles.astype(np.float64))).max() < 1e-6
    exact = positions[:, None] * frequencies.astype(np.float64)
    assert np.abs(twin["cos"] - np.cos(exact)).max() > 1e-4  # at 131,071 the rounding of an angle is felt


def test_the_twin_of_a_float16_graph_widens_its_weights(shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, _ = bundles.named(shared_folder, LLAMA3)
    bundle = bundles.export(checkpoint, tmp_path / "half", "float16")
    model = bundles.reference_model(checkpoint)
    model = replace(model, weights={k: w.astype(np.float16).astype(float) for k, w in model.weights.items()})
    ids = bundles.random_ids(16)
    feed = {"tokens": ids, "positions": np.arange(16, dtype=np.int64)}
    twin = _run_twin(bundle, "dense_00", feed, tmp_path)
    embedded = model.weights["model.embed_tokens.weight"][ids]
    _assert_close(twin["residual_out"], embedded, 0)
    _assert_close(twin["v"], llama.project_qkv(model, 0, embedded, 0)[2], EXACT)


def test_the_twin_of_attention_graphs_computes_in_float64(shared_folder: Path, tmp_path: Path) -> None:
    checkpoint, _ = bundles.named(shared_folder, LLAMA3)
    draw = np.random.default_rng(2)
    S, L, H, w = 24, 6, 8, 4
    sizes = {"chunk_size": S, "batch_size": S, "local": L, "heavy": H}
    for policy in (ColumnSum(**sizes), Window(**sizes, window=w)):
        bundle = tmp_path / policy.score
        (bundle / "onnx").mkdir(parents=True)
        shape = (
            layer_kind(open_checkpoint(str(checkpoint)).config, 0)
            .spec(open_checkpoint(str(checkpoint)).config)
            .attention("float32")
        )
        for graph in policy_graphs(policy, shape):
            (bundle / graph.spec.file).write_bytes(graph.model.SerializeToString())
        q, o = (draw.standard_normal((S, 4, 64)).astype(np.float32) for _ in range(2))
        k, v = (draw.standard_normal((2 * S, 2, 64)).astype(np.float32) for _ in range(2))
        sizes = {"chunk_size": S, "scale": 0.125, "score_heads": 2}

        phase1 = _run_twin(bundle, "phase1", {"q": q, "k": k[:S], "v": v[:S]}, tmp_path)
        for value, expected in zip(
            phase1.values(), operators.chunked_intra_attention(q, k[:S], v[:S], **sizes), strict=True
        ):
            _assert_close(value, expected, EXACT)

        before = np.sort(draw.permuted(np.tile(np.arange(S), (2, 1)), axis=1)[:, : L + H]).astype(np.int32)
        scores = draw.uniform(0, 9, (2 * S, 2)).astype(np.float32)
        m, l = draw.standard_normal((S, 4)).astype(np.float32), draw.uniform(1, S, (S, 4)).astype(np.float32)
        feed = {
            "q": q,
            "k_cache": k,
            "v_cache": v,
            "memory": before,
            "o_intra": o,
            "m_intra": m,
            "l_intra": l,
        }
        feed |= {"score": scores, "chunk_range": np.array([S, 2 * S], np.int64)}
        phase2 = _run_twin(bundle, "phase2", feed, tmp_path)
        expected, colsum = operators.memory_fused_attention(q, k, v, before, o, m, l, scale=0.125)
        _assert_close(phase2["o"], expected, EXACT)
        after = scores.astype(np.float64)
        if isinstance(policy, ColumnSum):
            after[before.T, [0, 1]] += colsum.T
        else:
            k_mem, _ = operators.memory_gather(k, v, before)
            votes, after[S:] = operators.candidate_score(q[-w:], k[S:], k_mem, scale=0.125)
            after[before.T, [0, 1]] = votes.T
        _assert_close(phase2["score_next"], after, EXACT)
        chosen = operators.memory_select(after, before, S, 2 * S, local=L, heavy=H)
        assert np.array_equal(phase2["memory_next"], chosen)


def test_the_twin_has_no_narrow_number_but_the_angles(shared_folder: Path) -> None:
    _, bundle = bundles.named(shared_folder, LLAMA3)
    narrow = {TensorProto.FLOAT, TensorProto.FLOAT16}
    for path in sorted((bundle / "onnx").glob("*.onnx")):
        graph = float64_twin(path).graph
        left = {tensor.name for tensor in graph.initializer if tensor.data_type in narrow}
        assert left <= {"rotations.0.inv_freq"}, path.name
        outputs = {output.name for output in graph.output if output.type.tensor_type.elem_type in narrow}
        assert outputs <= {"cos", "sin"}, path.name


def test_weights_with_hard_links_are_named(shared_folder: Path, tmp_path: Path) -> None:
    """onnx does not read them, and the graph is not to blame."""
    _, bundle = bundles.named(shared_folder, LLAMA3)
    shutil.copytree(bundle / "onnx", tmp_path / "onnx")
    (weights,) = (tmp_path / "onnx" / "weights").glob("dense_00.*")
    (tmp_path / "link").hardlink_to(weights)
    with pytest.raises(BundleError, match=r"dense_00\.\w+ has several hard links.*copy the bundle"):
        float64_twin(tmp_path / "onnx" / "dense_00.onnx")


def test_a_graph_that_is_none_is_named(shared_folder: Path, tmp_path: Path) -> None:
    graph = tmp_path / "phase1.onnx"
    graph.write_bytes(b"\xff" * 64)
    with pytest.raises(BundleError, match=str(graph)):
        float64_twin(graph)


# The single pass under transformers

CHUNKS = ColumnSum(chunk_size=48, batch_size=96, local=8, heavy=12, dense_tail=0)
WINDOW = altered(CHUNKS, score="window", window=6)
CASES = {
    "colsum": CHUNKS,
    "window": WINDOW,
    "colsum, query heads": altered(CHUNKS, heads="query"),
    "window, query heads": altered(WINDOW, heads="query"),
    "dense tail": altered(CHUNKS, dense_tail=60),
    "a tail over everything": altered(CHUNKS, dense_tail=1000),
    "all at once": altered(WINDOW, heads="query", dense_tail=29),
    "one chunk": altered(CHUNKS, chunk_size=512, batch_size=512),
}


def _reference(checkpoint: Path, ids: NDArray[np.int64], policy: H2O[Any]) -> llama.H2ORun:
    return llama.h2o_run(
        bundles.reference_model(checkpoint),
        ids,
        chunk_size=policy.chunk_size,
        local=policy.local,
        heavy=policy.heavy,
        score=policy.score,
        window=getattr(policy, "window", None),
        heads=policy.heads,
        dense_tail=policy.dense_tail,
    )


def _sets(run: llama.H2ORun) -> NDArray[np.int32]:
    return np.array(
        [[step.memory for step in steps] for steps in run.selections]
    )  # [layers, boundaries, Hs, M]


def single_pass(policy: Any, model: Any, adopt: Any = None) -> SinglePass[Any]:
    rules = {"colsum": ColumnSumPass, "window": VotePass}
    return rules[policy.score](policy, model, adopt)


def layers_of(bundle: Path) -> ModelSpec:
    return Bundle.open(bundle).manifest.model


def _single_pass(checkpoint: Path, ids: NDArray[np.int64], rule: SinglePass[Any]) -> NDArray[np.float64]:
    """Logits of every token in float64."""
    model = StreamedModel(open_checkpoint(str(checkpoint)), torch.float64, rule)
    *_, hidden = model.hidden_states(ids.tolist())
    logits: NDArray[np.float64] = model.logits(hidden).numpy()
    return logits


@pytest.mark.parametrize(
    ("name", "case"), [*((LLAMA3, case) for case in CASES), ("qwen3-g2-d128", "all at once")]
)
def test_the_single_pass_equals_the_reference_that_goes_chunk_by_chunk(
    name: str, case: str, shared_folder: Path
) -> None:
    checkpoint, bundle = bundles.named(shared_folder, name)
    policy, ids = CASES[case], bundles.random_ids(211, seed=3)
    run = _reference(checkpoint, ids, policy)
    rule = single_pass(policy, layers_of(bundle), _sets(run))
    logits = _single_pass(checkpoint, ids, rule)
    assert bundles.relative_error(logits, run.logits) < 10 * ANGLES
    assert (rule.wrong, rule.swapped) == (0, 0)
    alone = _single_pass(checkpoint, ids, single_pass(policy, layers_of(bundle)))
    assert np.array_equal(alone, logits)


def test_the_policy_of_the_single_pass_is_sparse(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids = bundles.random_ids(211, seed=3)
    full = _single_pass(checkpoint, ids, single_pass(CASES["one chunk"], layers_of(bundle)))
    plain = StreamedModel(open_checkpoint(str(checkpoint)), torch.float64)
    *_, hidden = plain.hidden_states(ids.tolist())
    assert bundles.relative_error(full, plain.logits(hidden).numpy()) < EXACT
    sparse = _single_pass(checkpoint, ids, single_pass(CHUNKS, layers_of(bundle)))
    assert np.allclose(sparse[:48], full[:48], rtol=0, atol=1e-9)  # the first chunk sees all there is
    assert bundles.relative_error(sparse[48:], full[48:]) > 1e-2


WRONG = {
    # What replaces one entry of the sets after the second chunk, which ends at 96 with local window 88 … 95.
    "a clearly lower score": lambda chosen, run: _worst(run),
    "a token that was forgotten": lambda chosen, run: _forgotten(run),
    "a token of the future": lambda chosen, run: 100,
    "the same token twice": lambda chosen, run: chosen[1],
}


def _worst(run: llama.H2ORun) -> int:
    step = run.selections[0][1]
    candidates = [j for j in range(step.start, step.stop - 8) if j not in step.memory[0]]
    return min(candidates, key=lambda j: float(step.score[j, 0]))


def _forgotten(run: llama.H2ORun) -> int:
    step = run.selections[0][1]
    return next(j for j in range(3, step.start) if j not in step.before[0])


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_memory_set_is_counted_as_wrong(what: str, shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids = bundles.random_ids(150, seed=4)
    run = _reference(checkpoint, ids, CHUNKS)
    sets = _sets(run)
    chosen = sets[0, 1, 0]
    entry = np.flatnonzero(chosen < 88)[0]  # a heavy hitter
    chosen[entry] = WRONG[what](chosen, run)
    rule = single_pass(CHUNKS, layers_of(bundle), sets)
    _single_pass(checkpoint, ids, rule)
    assert rule.wrong >= 1
    assert rule.swapped == 0


def test_a_lost_local_token_is_counted_as_wrong(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    ids, lost = bundles.random_ids(150, seed=4), 95
    run = _reference(checkpoint, ids, CHUNKS)
    sets = _sets(run)
    chosen = sets[0, 1, 0]
    assert lost in chosen
    chosen[chosen == lost] = next(j for j in range(48, 88) if j not in chosen)
    rule = single_pass(CHUNKS, layers_of(bundle), sets)
    _single_pass(checkpoint, ids, rule)
    assert rule.wrong >= 1
    assert rule.swapped == 0


def test_equal_scores_that_went_the_other_way_are_near_ties() -> None:
    # All keys are alike, so under `window` every candidate has the same votes but for the last rows.
    policy = altered(CHUNKS, score="window", chunk_size=16, batch_size=16, local=4, heavy=3, window=2)
    q, k = torch.zeros(1, 2, 20, 4), torch.zeros(1, 1, 20, 4)
    module, model = SimpleNamespace(layer_idx=0), grouped(2, 1)
    mine, theirs = [0, 1, 2, 12, 13, 14, 15], [0, 5, 9, 12, 13, 14, 15]
    for chosen, swapped in ((mine, 0), (theirs, 4)):
        rule = single_pass(policy, model, np.array(chosen, np.int32).reshape(1, 1, 1, 7))
        rule(module, q, k, torch.randn(1, 1, 20, 4), None, 0.5)
        assert (rule.swapped, rule.wrong) == (swapped, 0)


# The pipeline


def test_the_pipeline_tells_a_wrong_memory_set(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, bundle = bundles.named(shared_folder, LLAMA3)
    pipeline = PipelineComparison(ComparedBundle(Bundle.open(bundle)), bundles.random_ids(150).tolist())
    truth = open_checkpoint(str(checkpoint))
    (row,) = pipeline.against_checkpoint(truth, [CHUNKS], lambda stage: None)
    assert row.passed
    assert "0 entries wrong" in row.note

    real = Generator.boundary_memory

    def altered(generator: Generator) -> NDArray[np.int32]:
        sets = real(generator)
        sets[1, 1, 0, 0] = 60 if 60 not in sets[1, 1, 0] else 61
        return np.sort(sets)

    monkeypatch.setattr(Generator, "boundary_memory", altered)
    (row,) = pipeline.against_checkpoint(truth, [CHUNKS], lambda stage: None)
    assert not row.passed
    assert "entries wrong" in row.reason
    assert "0 entries wrong" not in row.reason


# Rows


def _row(actual: list[float], expected: list[float], tolerance: float = 1e-3) -> Any:
    arrays = (np.array(actual), np.array(expected))
    return compare_arrays("pipeline", "g", "o", ("a", arrays[0]), ("b", arrays[1]), tolerance)


def test_a_row_measures_against_the_largest_value() -> None:
    row = _row([10.0, 0.009, 3.0], [10.0, 0.0, 3.0])
    assert (row.passed, row.reason) == (True, "")
    assert row.tolerance == pytest.approx(1e-2)
    assert row.max_error == pytest.approx(0.009)
    assert row.mean_error == pytest.approx(0.003)
    missed = _row([10.0, 0.011, 3.0], [10.0, 0.0, 3.0])
    assert not missed.passed
    assert missed.reason == "error 0.011, tolerance 0.01"


def test_what_is_not_a_number_never_passes() -> None:
    assert not _row([np.nan, 1.0], [1.0, 1.0]).passed
    assert not _row([np.inf, 1.0], [1.0, 1.0]).passed
    assert not _row([1.0, 1.0], [np.nan, 1.0]).passed
    assert _row([-np.inf, 1.0], [-np.inf, 1.0]).passed  # the maximum of an empty state


def test_the_reason_of_a_row_is_what_failed_first() -> None:
    near = _row([1.0], [1.0])
    assert replace(near, passed=False, note="3 entries wrong").reason == "3 entries wrong"
    far = replace(_row([2.0], [1.0]), note="0 entries wrong")
    assert far.reason == "error 1, tolerance 0.001; 0 entries wrong"


def test_an_altered_file_is_told_at_its_graph(shared_folder: Path, tmp_path: Path) -> None:
    _, bundle = bundles.named(shared_folder, LLAMA3)
    copy = shutil.copytree(bundle, tmp_path / "copy")
    for name in ("onnx/weights/embedding.bin", "tokenizer.json"):
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
    failed = {row.graph: row.reason for row in compare_files(Bundle.open(copy)) if not row.passed}
    embedding = "altered: onnx/weights/embedding.bin"
    assert failed == {"dense_00": embedding, "dense_02": embedding, "tokenizer": "altered: tokenizer.json"}
