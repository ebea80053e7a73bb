"""The device and the policy of prompts for which none is chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import bundles

from h2o_runtime import Generator
from h2o_runtime.backends import select_device
from h2o_runtime.backends.select_device import refusal_on_gpu, resolve_device
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full, Query, VerticalSlash, Window, by_length, full_for_short
from h2o_runtime.server.request_builder import RequestBuilder

REPO = Path(__file__).resolve().parents[2]
CONTEXT, LIMIT = 260, 100


@pytest.fixture
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


# Policies by length


def test_the_limit_is_of_gpus_and_of_the_default_rule() -> None:
    assert full_for_short(Query(batch_size=2048), "cuda") == (Full(batch_size=2048), 16_384)
    assert full_for_short(Query(), "cpu")[1] == 0
    for own in (Query(heavy=192), Window(), Full()):
        assert full_for_short(own, "cuda") == (own, 0)


def test_a_server_says_how_it_reads_short_prompts() -> None:
    model: Any = SimpleNamespace(
        generator=SimpleNamespace(spec=SimpleNamespace(device=SimpleNamespace(name="cuda")))
    )
    grammars: Any = None
    whole, sparse = Full(batch_size=Query().batch_size), Query()
    by_length = RequestBuilder(model, grammars, sparse, by_length=True)
    assert by_length.short_prefill() == (whole, 16_384)
    assert by_length.summary(None) == f"{whole.summary()} below 16,384 new tokens; else {sparse.summary()}"
    assert by_length.summary("full") == whole.summary()
    fixed = RequestBuilder(model, grammars, sparse)
    assert (fixed.short_prefill()[1], fixed.summary(None)) == (0, sparse.summary())


def test_the_docs_have_the_limit() -> None:
    page = (REPO / "docs" / "policies.md").read_text(encoding="utf-8")
    assert f"fewer than {by_length.FULL_BELOW['cuda']:,}" in page


@pytest.fixture
def cuda(bundle: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Generator]:
    monkeypatch.setattr(by_length, "FULL_BELOW", {"cuda": LIMIT})
    with Generator.load(bundle, context=CONTEXT, device="cuda", pool_bytes=1 << 28) as generator:
        yield generator


@pytest.mark.usefixtures("dense_graphs_wait")
def test_a_conversation_goes_on_as_it_began(cuda: Generator) -> None:
    """New tokens count, not those that are kept."""
    ids, other = bundles.random_ids(200), bundles.random_ids(200, seed=1)
    assert cuda.default_policy(ids[: LIMIT - 1].tolist()) == Full()
    assert cuda.default_policy(ids[:LIMIT]) == Query()
    cuda.prefill(ids[:80])
    assert cuda.session.origin.policy == Full()
    cuda.prefill(ids[:150])
    assert (cuda.session.origin.policy, cuda.reused) == (Full(), 80)
    cuda.prefill(other[:150])  # the first conversation waits in the pool
    assert (cuda.session.origin.policy, cuda.reused) == (Query(), 0)
    assert cuda.keeps(other[:150]) == 150
    assert cuda.default_policy(np.append(other[:150], ids[:20])) == Query()
    assert cuda.finds(ids[:180]) == 150
    cuda.prefill(ids[:180])
    assert (cuda.session.origin.policy, cuda.reused) == (Full(), 150)


@pytest.mark.usefixtures("dense_graphs_wait")
def test_a_policy_that_is_named_holds(cuda: Generator) -> None:
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


@pytest.mark.usefixtures("dense_graphs_wait")
def test_the_cpu_is_told_nothing(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Generator.load(bundle, context=CONTEXT, device="cpu", decoding=Quest()) as generator:
        generator.prefill(bundles.random_ids(20), VerticalSlash())
    assert "GPU" not in caplog.text


# Devices


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU ONNX Runtime and our kernels can use."""
    ort = SimpleNamespace(get_available_providers=lambda: [select_device.CUDA_PROVIDER])
    monkeypatch.setattr(select_device, "import_onnxruntime", lambda: ort)
    monkeypatch.setattr(select_device, "cuda_kernels", lambda: SimpleNamespace(device_count=lambda: 1))


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
    monkeypatch.setattr(select_device, "_gpu_is_usable", lambda: False)
    assert resolve_device("auto", "onnxruntime", "the reason") == "cpu"
    assert not caplog.records


def test_what_a_gpu_refuses(bundle: Path) -> None:
    model: Any = Bundle.open(bundle).manifest.model
    assert refusal_on_gpu(model, Query()) == ""
    assert "works only on the CPU" in refusal_on_gpu(model, Query(missed=0.0025))
    assert "took 5 times as long" in refusal_on_gpu(model, VerticalSlash())
    wide = model.model_copy(update={"head_size": 1024})
    assert "no kernel takes keys of 1024" in refusal_on_gpu(wide, Query())
