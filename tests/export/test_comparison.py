"""What h2o-compare does: its own truth is checked against the float64 NumPy references, written apart from it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tests import bundles
from tests.reference import llama, operators

from h2o_export.checkpoints import open_checkpoint
from h2o_export.comparison.files import compare_files
from h2o_export.comparison.report import compare_arrays
from h2o_export.comparison.twin import float64_twin, save_twin
from h2o_export.policies import policy_graphs
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import BundleError
from h2o_runtime.policies.prefill import ColumnSum, Window

pytestmark = pytest.mark.timeout(600)
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


def test_the_twin_has_steps_of_states_in_float64(tmp_path: Path) -> None:
    x, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "out"))
    graph = helper.make_graph([helper.make_node("Softplus", ["x"], ["out"])], "steps", [x], [out])
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "steps.onnx")
    (tmp_path / "twin").mkdir()
    given = np.concatenate((np.linspace(-90, 90, 401), [-1e4, 1e4])).astype(np.float32)
    found = _run(save_twin(tmp_path / "steps.onnx", tmp_path / "twin"), {"x": given})["out"]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.logaddexp(0, given.astype(np.float64)), rtol=1e-14, atol=1e-15)


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
        shape = open_checkpoint(str(checkpoint)).plan.layers[0].spec.attention("float32")
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
