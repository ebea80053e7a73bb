"""Integer weights: how they are rounded, how they lie in a bundle; nothing but rounding changes a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import torch
from tests import bundles
from tests.reference import checkpoints
from transformers import AutoModelForCausalLM

from h2o_export.calibration.compensation import even
from h2o_export.calibration.rounding import compensate, windows
from h2o_export.calibration.scaling import ScaledCheckpoint, scaling_factors
from h2o_export.checkpoints import open_checkpoint
from h2o_export.checkpoints.safetensors import SafetensorsCheckpoint
from h2o_export.comparison import ComparedBundle, GraphComparison
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.exporter import ExportOptions, write_bundle
from h2o_export.formats import DType, choose_formats
from h2o_export.formats.blocks import pack, quantize
from h2o_export.preview import preview_export
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.tensors import QuantizedTensor
from h2o_export.validation.validate import validate
from h2o_runtime import Generator
from h2o_runtime.answers.events import read_at_once
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs.matrices import unpack
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.policies.prefill import Full

TIED, UNTIED = "llama-g2-d64-llama3", "qwen2-g4-d32"  # the second has biases
Bits = Literal[4, 8]


# Rounding


def test_four_bits_are_packed_as_onnx_has_them() -> None:
    q = np.random.default_rng(0).integers(-8, 8, (5, 6)).astype(np.int8)
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=q.shape, raw_data=pack(q).tobytes())
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), q)
    np.testing.assert_array_equal(unpack(pack(q)).reshape(q.shape), q)


# In a bundle


@pytest.fixture(
    scope="module",
    params=[
        (TIED, "int8"),
        *(pytest.param((UNTIED, weights), marks=pytest.mark.nightly) for weights in ("int8", "int4")),
        (UNTIED, "int4+offset"),
    ],
)
def made(request: pytest.FixtureRequest, shared_folder: Path) -> tuple[Path, Path, str]:
    """Checkpoint, bundle and the name of the format."""
    shape, weights = request.param
    return *bundles.named(shared_folder, shape, f"-{weights}", weights=weights), weights


def test_no_float_matrix_is_left(made: tuple[Path, Path, str]) -> None:
    _, folder, weights = made
    bundle = Bundle.open(folder)
    kind = onnx.TensorProto.INT8 if weights == "int8" else onnx.TensorProto.INT4
    for graph in bundle.manifest.dense_graphs():
        model = onnx.load(bundle.path(graph), load_external_data=False)
        matrices = [
            tensor
            for tensor in model.graph.initializer
            if len(tensor.dims) == 2 and not tensor.name.endswith((".scales", ".offsets"))
        ]
        assert len(matrices) >= 4
        for tensor in matrices:
            table = tensor.name in ("embed_tokens.weight", "lm_head.weight")
            assert tensor.data_type == (onnx.TensorProto.INT8 if table else kind), tensor.name
        assert model.opset_import[0].version == 21


def test_each_graph_computes_its_weights_exactly(made: tuple[Path, Path, str]) -> None:
    """Multiplied as floats, within float32's tolerance of the float64 twin; in a form, within the stated one."""
    compared = ComparedBundle(Bundle.open(made[1]), threads=1, dense_form="blocks")
    rows = list(GraphComparison(compared, None).dense(bundles.random_ids(24).tolist(), lambda name: None))
    assert {row.stage for row in rows} == {"dense", "rounding"}
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    rounded = [row for row in rows if row.stage == "rounding" and row.output == "logits"]
    assert rounded[0].max_error > 10 * next(r.max_error for r in rows if r.output == "logits")


def test_the_manifest_knows_every_byte(made: tuple[Path, Path, str]) -> None:
    checkpoint, folder, weights = made
    manifest = Manifest.read(folder)
    files = sum(spec.bytes for name, spec in manifest.files.items() if name.startswith("onnx/weights/"))
    stored = manifest.model.weight_bytes
    tensors = 12 * manifest.model.layers * 3
    assert stored <= files < stored + tensors * 4096
    assert manifest.model.weights is not None
    assert (manifest.model.weights.projections, manifest.model.weights.head) == (weights, "int8")
    preview = preview_export(open_checkpoint(str(checkpoint)), ExportOptions("", folder, weights=weights))
    assert preview.disk_bytes == stored


def test_a_tied_table_is_stored_once(shared_folder: Path) -> None:
    folder = bundles.named(shared_folder, TIED, "-int8", weights="int8")[1]
    bundle = Bundle.open(folder)
    first, last = bundle.manifest.dense_graphs()[0], bundle.manifest.dense_graphs()[-1]
    assert "onnx/weights/embedding.bin" in first.weights
    assert "onnx/weights/embedding.bin" in last.weights
    model = onnx.load(bundle.path(first), load_external_data=False)
    looked_up = [node.input[0] for node in model.graph.node if node.op_type == "Gather"]
    assert looked_up == [
        "embed_tokens.weight",
        "embed_tokens.weight.scales",
    ]  # rows, and not a table of floats


def test_validation_tells_errors_from_what_rounding_costs(made: tuple[Path, Path, str]) -> None:
    checkpoint, folder, weights = made
    found = validate(folder, open_checkpoint(str(checkpoint)), lambda stage: None)
    assert found.passed
    assert found.relative_error < 1e-5
    assert found.quantization_error is not None
    assert 1e-3 < found.quantization_error < (0.05 if weights == "int8" else 0.5)


@dataclass(frozen=True)
class _Blocked(SafetensorsCheckpoint):
    """A checkpoint whose files hold blocks: of 4 bits, in blocks of 32."""

    def blocks(self, name: str) -> QuantizedTensor | None:
        shape = checkpoint_tensors(self.plan).get(name, ())
        return quantize(self.tensor(name, shape), 4, 32, "float32", name) if len(shape) == 2 else None


@pytest.mark.parametrize(
    ("weights", "block_size"),
    [*(pytest.param(bits, 32, marks=pytest.mark.nightly) for bits in ("int4", "int8")), ("int4", 16)],
)
def test_a_checkpoints_own_blocks_are_taken_as_they_are(
    shared_folder: Path, tmp_path: Path, weights: str, block_size: int
) -> None:
    folder = bundles.named(shared_folder, TIED)[0]
    opened = open_checkpoint(str(folder))
    assert isinstance(opened, SafetensorsCheckpoint)
    checkpoint = _Blocked(opened.path, opened.source, opened.config, opened.files, opened.names)
    write_bundle(
        checkpoint,
        ExportOptions("", tmp_path, weights=weights, block_size=block_size),
        tmp_path,
        lambda s: None,
    )
    formats = choose_formats("float32", weights, block_size, None, True)
    for name in ("model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"):
        shape = checkpoint_tensors(opened.plan)[name]
        own = checkpoint.blocks(name)
        assert own is not None
        format = formats.table if "embed" in name else formats.projections
        np.testing.assert_array_equal(format.rounded(checkpoint, name, shape).numpy(), own.dequantize())


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"weights": "int4", "head_weights": "int4"}, ConfigError, "head must be int8 or float"),
        ({"calibrate": Path("x")}, ConfigError, "calibrate needs integer weights"),
        ({"weights": "int4", "calibrate": Path("nowhere")}, InputError, "nowhere: no such file"),
    ],
)
def test_what_cannot_be_is_refused(
    shared_folder: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    checkpoint = open_checkpoint(str(bundles.named(shared_folder, TIED)[0]))
    with pytest.raises(error, match=says):
        write_bundle(checkpoint, ExportOptions("", tmp_path, **options), tmp_path, lambda stage: None)


# Rows that are no whole number of blocks


@pytest.mark.parametrize(
    ("hidden", "heads", "tied", "weights", "dtype"),
    [
        (207, 3, False, "int4", "float16"),
        pytest.param(204, 4, True, "int8", "float32", marks=pytest.mark.nightly),
        pytest.param(200, 4, False, "int4+offset", "float32", marks=pytest.mark.nightly),
    ],
)
def test_rows_that_no_block_divides_are_padded(
    tmp_path: Path, hidden: int, heads: int, tied: bool, weights: str, dtype: DType
) -> None:
    folder = checkpoints.make_checkpoint(
        tmp_path / "model", hidden=hidden, query_heads=heads, kv_heads=heads, tied=tied, layers=1
    )
    bundle = bundles.export(folder, tmp_path / "bundle", dtype, weights=weights)
    opened, ids = open_checkpoint(str(folder)), bundles.random_ids(40)
    found = validate(bundle, opened, lambda stage: None)
    assert found.relative_error <= found.tolerance
    files = Manifest.read(bundle).files
    stored = sum(spec.bytes for name, spec in files.items() if name.startswith("onnx/weights/"))
    assert stored >= preview_export(opened, ExportOptions("", bundle, dtype, weights=weights)).disk_bytes
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        truth = model(torch.from_numpy(ids)[None]).logits[0, -1].numpy()
    for form in ("exact", "native", "blocks"):
        with Generator.load(bundle, context=48, device="cpu", threads=1, dense_form=form) as generator:
            logits = generator.prefill(ids, Full())
            embedding = read_at_once(generator.embed(ids))
        assert np.shape(embedding) == (hidden,)
        assert np.corrcoef(logits, truth)[0, 1] > (0.999 if weights == "int8" else 0.9), form


def test_compensated_rounding_of_padded_rows() -> None:
    x = together(256, 72)
    weights = torch.randn(6, 72, generator=torch.Generator().manual_seed(1))
    made = compensate(weights, windows(x, 32), 4, 32, "float32", "w").dequantize()[:, :72]
    nearest = quantize(weights, 4, 32, "float32", "w").dequantize()[:, :72]
    made_loss, nearest_loss = (
        float((x @ (torch.from_numpy(one) - weights).T).square().mean()) for one in (made, nearest)
    )
    assert made_loss < 0.3 * nearest_loss


# Scaling of channels


def test_scaled_channels_compute_the_same_model(shared_folder: Path) -> None:
    checkpoint = open_checkpoint(str(bundles.named(shared_folder, UNTIED)[0]))
    ids = bundles.random_ids(40).tolist()
    factors = scaling_factors(checkpoint, [ids])
    scaled = ScaledCheckpoint.of(checkpoint, factors)
    assert max(float(factor.max() / factor.min()) for factor in factors.values()) > 1.5
    expected, found = (
        list(StreamedModel(one, torch.float32).hidden_states(ids))[-1] for one in (checkpoint, scaled)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_calibrated_bundle_is_validated_against_its_own_weights(
    shared_folder: Path, tmp_path: Path, weights: str
) -> None:
    checkpoint = bundles.named(shared_folder, TIED)[0]
    text = tmp_path / "text.txt"
    text.write_text("Nine masons and a lamp. " * 40)
    folder = bundles.export(checkpoint, tmp_path / "bundle", weights=weights, calibrate=text)
    manifest = Manifest.read(folder)
    assert ("calibration.safetensors" in manifest.files) == (weights == "int8")
    assert manifest.model.weights is not None
    assert manifest.model.weights.compensated == (weights == "int4")
    found = validate(folder, open_checkpoint(str(checkpoint)), lambda stage: None)
    assert found.relative_error < 1e-5
    assert Bundle.open(folder).altered_files() == []


# Rounding for what is multiplied


def together(rows: int, columns: int) -> torch.Tensor:
    """Inputs that go together, as those of a trained model do, and of very different sizes."""
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(rows, 12, generator=draw) @ torch.randn(12, columns, generator=draw)
    own = torch.randn(rows, columns, generator=draw)
    return (common + 0.5 * own) * torch.randn(columns, generator=draw).exp()


def test_rounding_for_what_is_multiplied_loses_a_tenth_of_what_the_nearest_does() -> None:
    x = together(512, 128)
    weights = torch.randn(24, 128, generator=torch.Generator().manual_seed(1))
    made = compensate(weights, windows(x, 32), 4, 32, "float32", "w")
    nearest = quantize(weights, 4, 32, "float32", "w")
    assert (made.q.min(), made.q.max()) == (-8, 7)

    def lost(found: QuantizedTensor) -> float:
        return float((x @ (torch.from_numpy(found.dequantize()) - weights).T).square().mean())

    assert lost(made) < 0.1 * lost(nearest)


def test_no_token_counts_for_more_than_the_median() -> None:
    x = together(9, 64)
    x[0] *= 1000
    lengths = even(x).norm(dim=1)
    assert lengths.max() <= 1.001 * lengths.median()
    shorter = x.norm(dim=1) <= x.norm(dim=1).median()
    torch.testing.assert_close(even(x)[shorter], x[shorter])


def test_weights_on_a_grid_of_their_own_stay_as_they_are() -> None:
    draw = np.random.default_rng(0)
    q = draw.integers(-8, 8, (6, 64)).astype(np.int8)
    q[:, ::32] = -8
    own = QuantizedTensor(4, 32, q, (draw.random((6, 2)) + 0.5).astype(np.float32))
    x = together(256, 64)
    made = compensate(torch.from_numpy(own.dequantize()), windows(x, 32), 4, 32, "float32", "w")
    np.testing.assert_allclose(made.dequantize(), own.dequantize(), rtol=1e-3, atol=1e-3)


def test_inputs_that_a_text_never_has_are_no_reason_to_fail() -> None:
    x = together(64, 64)
    x[:, 5:40] = 0
    weights = torch.randn(4, 64, generator=torch.Generator().manual_seed(2))
    weights[1] = 0
    made = compensate(weights, windows(x, 32), 4, 32, "float16", "w")
    assert np.isfinite(made.dequantize()).all()
    assert made.scales.all()
    assert not made.dequantize()[1].any()
    np.testing.assert_array_equal(made.scales, made.scales.astype(np.float16).astype(np.float32))
