"""The device and the policy of prompts for which none is chosen."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.backends import select
from h2o_runtime.backends.select import refusal_on_gpu, resolve_device
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.decode.subquadratic import SubquadraticDecode
from h2o_runtime.policies.prefill import Full, Query, Subquadratic, VerticalSlash, Window, policy_on_device
from h2o_runtime.policies.prefill.h2o.scores import query

REPO = Path(__file__).resolve().parents[2]
CONTEXT = 260


@pytest.fixture
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


# Policies by device


def test_the_default_rule_begins_dense_on_a_gpu_and_has_fewer_votes() -> None:
    there = Query(batch_size=2048, dense_start=4096, queries=8)
    assert policy_on_device(Query(batch_size=2048), "cuda") == there
    assert policy_on_device(Query(), "cpu") == Query()
    for own in (Query(heavy=192), Window(), Full()):
        assert policy_on_device(own, "cuda") == own


def test_the_docs_have_the_length() -> None:
    page = (REPO / "docs" / "policies.md").read_text(encoding="utf-8")
    assert f"the first {query.ON_DEVICE['cuda']['dense_start']:,} tokens" in page


@pytest.mark.usefixtures("dense_graphs_wait")
def test_where_none_is_chosen_it_is_that_of_the_device(
    bundle: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "ON_DEVICE", {"cuda": {"dense_start": 2048}})
    with Generator.load(bundle, context=CONTEXT, device="cuda") as cuda:
        cuda.prefill(bundles.random_ids(20))
        assert cuda.session.origin.policy == cuda.default_policy == Query(dense_start=2048)
        cuda.prefill(bundles.random_ids(20), Query())
        assert cuda.session.origin.policy == Query()


@pytest.mark.usefixtures("dense_graphs_wait")
def test_what_is_slow_on_a_gpu_says_so(
    bundle: Path, emulated_cuda: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """When the model is loaded. What is slower than full attention is refused."""
    with Generator.load(bundle, context=CONTEXT, device="cuda", decoding=Quest()) as generator:
        assert "`decode=quest` saved no time" in caplog.text
        with pytest.raises(ConfigError, match=r"minference` took 5 times as long.*: use `device=cpu`"):
            generator.prefill(bundles.random_ids(20), VerticalSlash())
    with pytest.raises(
        ConfigError, match=r"decode=subquadratic` has kernels for CPUs only: use `device=cpu`"
    ):
        Generator.load(bundle, context=CONTEXT, device="cuda", decoding=SubquadraticDecode())


@pytest.mark.usefixtures("dense_graphs_wait")
def test_the_cpu_is_told_nothing(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Generator.load(bundle, context=CONTEXT, device="cpu", decoding=Quest()) as generator:
        generator.prefill(bundles.random_ids(20), VerticalSlash())
    assert "GPU" not in caplog.text


# Devices


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU ONNX Runtime and our kernels can use."""
    ort = SimpleNamespace(get_available_providers=lambda: [select.CUDA_PROVIDER])
    monkeypatch.setattr(select, "import_onnxruntime", lambda: ort)
    monkeypatch.setattr(select, "cuda_kernels", lambda: SimpleNamespace(device_count=lambda: 1))


@pytest.mark.usefixtures("with_gpu")
def test_auto_is_the_gpu_unless_that_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_device("auto", "onnxruntime") == "cuda"
    assert not caplog.records
    assert resolve_device("auto", "onnxruntime", "the reason") == "cpu"
    assert [record.message for record in caplog.records] == ["running on the CPU, not on the GPU: the reason"]
    assert resolve_device("cuda", "onnxruntime", "the reason") == "cuda"
    assert resolve_device("auto", "tensorrt", "the reason") == "cuda"


def test_without_a_gpu_nothing_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(select, "_gpu_is_usable", lambda: False)
    assert resolve_device("auto", "onnxruntime", "the reason") == "cpu"
    assert not caplog.records


def test_what_a_gpu_refuses(bundle: Path) -> None:
    model: Any = Bundle.open(bundle).manifest.model
    assert refusal_on_gpu(model, Query(), Quest()) == ""
    assert "works only on the CPU" in refusal_on_gpu(model, Query(missed=0.0025), None)
    assert "took 5 times as long" in refusal_on_gpu(model, VerticalSlash(), None)
    assert refusal_on_gpu(model, Subquadratic(), None) == "`policy=subquadratic` has kernels for CPUs only"
    assert (
        refusal_on_gpu(model, None, SubquadraticDecode()) == "`decode=subquadratic` has kernels for CPUs only"
    )
    wide = model.model_copy(update={"head_size": 1024})
    assert "no kernel takes keys of 1024" in refusal_on_gpu(wide, Query(), None)
