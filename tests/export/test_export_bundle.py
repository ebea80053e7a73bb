"""What lies in a bundle: every file accounted for, every weight once, all middle layers the same graph."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import ExternalDataInfo
from safetensors.numpy import load_file
from tests import bundles
from tests.reference import checkpoints

from h2o_export.operators import OPERATORS
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest, file_sha256
from h2o_runtime.errors import BundleError

PAGE = 4096
LAYERS = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Checkpoint and bundle of a tied model of four layers."""
    root = tmp_path_factory.mktemp("bundle")
    checkpoint = checkpoints.make_checkpoint(root / "checkpoint", layers=LAYERS, tied=True)
    return checkpoint, bundles.export(checkpoint, root / "bundle")


@pytest.fixture(scope="module")
def checkpoint(pair: tuple[Path, Path]) -> Path:
    return pair[0]


@pytest.fixture(scope="module")
def bundle(pair: tuple[Path, Path]) -> Path:
    return pair[1]


@pytest.fixture(scope="module")
def untied(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g1-d32")[1]


def graph(bundle: Path, name: str) -> onnx.ModelProto:
    return onnx.load(bundle / "onnx" / f"{name}.onnx", load_external_data=False)


def external(model: onnx.ModelProto) -> dict[str, ExternalDataInfo]:
    return {
        tensor.name: ExternalDataInfo(tensor)
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


# --- Files and manifest -----------------------------------------------------------------------------------


def test_the_manifest_lists_every_file_with_its_size_and_hash(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    there = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert set(manifest.files) == there - {"manifest.json"}
    for name, spec in manifest.files.items():
        assert spec.bytes == (bundle / name).stat().st_size
        assert spec.sha256 == file_sha256(bundle / name)
    assert Bundle.open(bundle).altered_files() == []


def test_every_graph_is_valid_with_shapes_inferred(bundle: Path) -> None:
    for spec in Manifest.read(bundle).graphs:
        path = bundle / spec.file
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(path, load_external_data=False)
        assert model.producer_name == "h2o-export"
        assert all(node.name for node in model.graph.node)
        assert len({node.name for node in model.graph.node}) == len(model.graph.node)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        functions = {function.name for function in model.functions if function.domain == "h2o"}
        named = {node.op_type for node in model.graph.node if node.domain == "h2o"}
        assert functions == ({operator.name for operator in OPERATORS} if spec.kind == "attention" else named)


# --- Weights ----------------------------------------------------------------------------------------------


def test_every_weight_is_stored_once_and_unchanged(bundle: Path, checkpoint: Path) -> None:
    stored: dict[tuple[str, int], bytes] = {}
    for spec in Manifest.read(bundle).dense_graphs():
        for info in external(graph(bundle, spec.name)).values():
            assert info.offset % PAGE == 0
            with (bundle / "onnx" / info.location).open("rb") as file:
                file.seek(info.offset)
                stored[info.location, info.offset] = file.read(info.length)
    expected = [array.tobytes() for array in load_file(checkpoint / "model.safetensors").values()]
    assert len(stored) == len(expected) + 1  # and the frequencies of RoPE
    assert not [content for content in expected if content not in stored.values()]


def test_weight_files_hold_nothing_but_weights(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    weights = {name: spec.bytes for name, spec in manifest.files.items() if name.startswith("onnx/weights/")}
    tensors = sum(len(external(graph(bundle, spec.name))) for spec in manifest.dense_graphs())
    exact = 4 * (manifest.model.parameters + manifest.model.head_size // 2)
    assert exact <= sum(weights.values()) < exact + tensors * PAGE
    graphs = sum(path.stat().st_size for path in (bundle / "onnx").glob("*.onnx"))
    assert graphs < 500_000  # no weight lies in a graph itself


def test_a_tied_embedding_is_one_file_of_its_own(bundle: Path, untied: Path) -> None:
    first, last = (external(graph(bundle, name)) for name in ("dense_00", f"dense_{LAYERS:02d}"))
    assert first["embed_tokens.weight"].location == "weights/embedding.bin"
    head = last["lm_head.weight"]
    assert (head.location, head.offset) == ("weights/embedding.bin", 0)
    assert (bundle / "onnx/weights/embedding.bin").stat().st_size == 4 * 4096 * 64

    last = external(graph(untied, "dense_02"))
    assert last["lm_head.weight"].location == "weights/dense_02.bin"


def test_all_middle_layers_are_the_same_graph(bundle: Path) -> None:
    """Only where a weight lies differs: a builder needs to compile one of them."""

    def anonymous(name: str) -> bytes:
        model = graph(bundle, name)
        assert model.graph.name == name
        model.graph.name = ""
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                info = ExternalDataInfo(tensor)
                assert info.location == f"weights/{name}.bin"
                del tensor.external_data[:]
        return model.SerializeToString(deterministic=True)

    middle = [anonymous(f"dense_{i:02d}") for i in range(1, LAYERS)]
    assert len(set(middle)) == 1


def test_the_attention_graphs_hold_no_weights(bundle: Path) -> None:
    for name in ("phase1", "phase2", "decode"):
        assert not graph(bundle, name).graph.initializer


def test_an_export_is_reproducible(checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    again = bundles.export(checkpoint, tmp_path / "again")
    assert Manifest.read(again).files == Manifest.read(bundle).files


# --- A damaged bundle -------------------------------------------------------------------------------------


def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def test_a_flipped_byte_is_found_by_hash(bundle: Path, tmp_path: Path) -> None:
    folder = copy(bundle, tmp_path)
    path = folder / "onnx/weights/dense_03.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 0x40
    path.write_bytes(content)
    opened = Bundle.open(folder)
    assert opened.altered_files() == ["onnx/weights/dense_03.bin"]
    with pytest.raises(BundleError, match=r"dense_03\.bin: its content is not what was exported: damaged"):
        opened.verify()
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes()[::-1])
    with pytest.raises(BundleError, match="nor that of 1 more files"):
        opened.verify()
    Bundle.open(bundle).verify()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[]", "bundle format None, this version reads 1"),
        ('{"format": 99}', "bundle format 99, this version reads 1"),
        ('{"format": 1}', "created_by: Field required"),
    ],
)
def test_a_broken_manifest_is_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(BundleError, match=says) as caught:
        Bundle.open(tmp_path)
    assert "manifest.json" in str(caught.value)
