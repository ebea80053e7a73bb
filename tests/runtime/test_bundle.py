"""A bundle whose manifest and graphs disagree is refused when it is opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.errors import BundleError
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query, Subquadratic, VerticalSlash


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def edit(bundle: Path, change: Callable[[Any], object]) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_bytes(json.dumps(manifest).encode())


def swap(manifest: Any, one: int, other: int) -> None:
    graphs = manifest["graphs"]
    graphs[one]["file"], graphs[other]["file"] = graphs[other]["file"], graphs[one]["file"]


MANIFESTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "no graphs": (lambda m: m.update(graphs=[]), "lists 0 dense graphs, and a model of 6 layers has 7"),
    "another order": (
        lambda m: m["graphs"].insert(1, m["graphs"].pop(2)),
        "dense graph 1 is 'dense_02', not 'dense_01'",
    ),
    "swapped files": (lambda m: swap(m, 1, 2), "dense_02.onnx: holds the graph 'dense_02', not 'dense_01'"),
    "an attention graph's": (lambda m: swap(m, 7, 9), "decode.onnx: holds the graph 'decode', not 'phase1'"),
    "other heads": (lambda m: m["model"].update(query_heads=99), r"'q' of dense_00 has rows of \[\d+, \d+\]"),
    "another interface": (
        lambda m: m["graphs"][8]["inputs"][0].update(dtype="float16"),
        "phase2.onnx: its inputs are .* the manifest says .*float16",
    ),
    "another version of h2o": (
        lambda m: m["opset"].update(h2o=2),
        "uses version 2 of the h2o operators, but this installation has version 1",
    ),
    "a field of a later version": (
        lambda m: m["model"].update(wonder=1),
        "model.wonder is not known: a later version may have written it; install that version",
    ),
    "a setting of a later version": (
        lambda m: m["prefill"].update(wonder=1),
        r"manifest\.json: prefill: h2o score=query has no setting wonder: it has .*; export the checkpoint again",
    ),
    "no such policy": (
        lambda m: m.update(prefill={"policy": ["h2o"]}),
        r"manifest\.json: prefill: policy must be one of h2o, full.*; export the checkpoint again",
    ),
    "another version of ONNX": (
        lambda m: m["opset"].update({"": 99}),
        "dense_00.onnx: has version 18 of the operators of ONNX, the manifest says 99",
    ),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_disagrees_is_refused(bundle: Path, case: str) -> None:
    change, says = MANIFESTS[case]
    edit(bundle, change)
    with pytest.raises(BundleError, match=says):
        Bundle.open(bundle)


@pytest.mark.parametrize(
    "policy", [VerticalSlash(vertical=9, fraction=0.5), Subquadratic(block=0), Query(missed=0.0), Full()]
)
def test_the_policy_that_is_written_is_read_back(bundle: Path, policy: PrefillPolicy[Any]) -> None:
    Manifest.read(bundle).model_copy(update={"prefill": policy}).write(bundle)
    assert str(Manifest.read(bundle).prefill) == str(policy)


def test_a_graph_that_disagrees_is_refused(bundle: Path) -> None:
    path = bundle / "onnx" / "dense_01.onnx"
    sound = onnx.load(path, load_external_data=False)

    def holding(change: Callable[[onnx.ModelProto], object]) -> None:
        model = onnx.ModelProto.FromString(sound.SerializeToString())
        change(model)
        path.write_bytes(model.SerializeToString())
        resize(bundle, "onnx/dense_01.onnx")

    def take_elsewhere(model: onnx.ModelProto) -> None:
        entry = next(e for i in model.graph.initializer for e in i.external_data if e.key == "location")
        entry.value = "../../../../secret"

    holding(lambda model: setattr(model.opset_import[0], "version", 99))
    with pytest.raises(BundleError, match=r"dense_01.onnx: has version 99 of the operators of ONNX"):
        Bundle.open(bundle)
    holding(take_elsewhere)
    with pytest.raises(BundleError, match=r"dense_01.onnx: reads weights from '\.\./\.\./\.\./\.\./secret'"):
        Bundle.open(bundle)
    holding(lambda model: setattr(model.graph.output[0], "name", "other"))
    with pytest.raises(BundleError, match=r"dense_01.onnx: its outputs are other float32\[n, "):
        Bundle.open(bundle)


def resize(bundle: Path, name: str) -> None:
    """The manifest has the size that the file has now."""
    size = (bundle / name).stat().st_size
    edit(bundle, lambda m: m["files"][name].update(bytes=size))


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"mod\\udce8le': its name is not UTF-8"):
        Bundle.open(tmp_path / os.fsdecode(b"mod\xe8le"))


def test_damage_of_every_kind_is_a_sentence(bundle: Path) -> None:
    path = bundle / "onnx" / "dense_00.onnx"
    content = path.read_bytes()
    for damaged in (b"", content[:-7], content[: len(content) // 2], b"\xff" * 99, b"\0" * 99, b"words" * 9):
        path.write_bytes(damaged)
        resize(bundle, "onnx/dense_00.onnx")
        with pytest.raises(
            BundleError, match=r"dense_00.onnx: (not a readable ONNX file|holds the graph '')"
        ):
            Bundle.open(bundle)
