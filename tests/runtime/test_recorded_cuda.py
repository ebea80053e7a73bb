"""Decode steps with ONNX Runtime that a GPU records, whose place the emulation takes.

There ONNX Runtime's CUDA provider would enqueue kernels. Here a dense graph is a function that the emulated stream
calls when it gets to it, recorded or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, load_from_string
from tests import bundles, latent_models
from tests.bundles import random_ids
from tests.engine_runtime import HostFunctions

from h2o_runtime import Generator
from h2o_runtime.backend import HIDDEN, Tensors
from h2o_runtime.backends import onnxruntime
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.dense_graphs.cuda_provider import unrecordable
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.ort import session
from h2o_runtime.policies.prefill import Full

CONTEXT = 200
FULL = Full()


@pytest.fixture
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.fixture
def functions(emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> HostFunctions:
    """Dense graphs on the dense lane, which may be recorded."""
    functions = HostFunctions(emulated_cuda)
    bound = OnnxRuntimeBackend.bound

    def on_lane(
        self: OnnxRuntimeBackend, graph: str, inputs: Tensors, outputs: Tensors
    ) -> Callable[[], None]:
        run = bound(self, graph, inputs, outputs)
        if self.device.name != "cuda":
            return run
        stream = self.device.lanes.dense.handle  # type: ignore[attr-defined]
        return lambda: functions.enqueue(stream, run)  # type: ignore[return-value]

    monkeypatch.setattr(OnnxRuntimeBackend, "bound", on_lane)
    monkeypatch.setattr(OnnxRuntimeBackend, "infer", lambda self, *call: self.bound(*call)())
    monkeypatch.setattr(OnnxRuntimeBackend, "recordable", True)
    return functions


@pytest.fixture
def both(bundle: Path, functions: HostFunctions) -> Iterator[tuple[Generator, Generator]]:
    with (
        Generator.load(bundle, context=CONTEXT, device="cuda", slots=3) as ours,
        Generator.load(bundle, context=CONTEXT, device="cpu") as theirs,
    ):
        yield ours, theirs
    assert functions.failures == []


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


def test_steps_are_recorded_and_equal_the_cpus(
    both: tuple[Generator, Generator], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    ours, theirs = both
    for generator in both:
        generator.prefill(random_ids(40), FULL)
    for token in (3, 4):
        same(ours.decode(token), theirs.decode(token))
    assert "recorded the decode step of 2 layers with 1 row" in caplog.text
    monkeypatch.setattr(ours.loaded.backend, "bound", None)  # a replay calls ONNX Runtime no more
    for token in range(5, 25):
        same(ours.decode(token), theirs.decode(token))


def test_a_prompt_between_two_replays(both: tuple[Generator, Generator]) -> None:
    """And a session of other length at other addresses."""
    ours, theirs = both
    for n in (40, 130, 7):
        for generator in both:
            generator.reset()
            generator.prefill(random_ids(n, seed=n), FULL)
        for token in (3, 4, 5):
            same(ours.decode(token), theirs.decode(token))


def test_rows_of_several_sessions(both: tuple[Generator, Generator]) -> None:
    ours, theirs = both
    slots, prompts = (ours, *ours.others), [random_ids(20 + 30 * i, seed=i) for i in range(3)]
    for slot, ids in zip(slots, prompts, strict=True):
        slot.prefill(ids, FULL)
    steps = []
    for token in (3, 4, 5):
        rows = ours.loaded.forward.decode_rows([StepRow(token, slot.session) for slot in slots])
        steps.append(rows.copy())
        for slot in slots:
            slot.session.decoded([token])
    for index, ids in enumerate(prompts):
        theirs.reset()
        theirs.prefill(ids, FULL)
        for token, rows in zip((3, 4, 5), steps, strict=True):
            same(rows[index], theirs.decode(token))


# What is recorded


def never_run(model: bytes, *, beside: Path | None, operators: Path, **_: Any) -> Any:
    return session.open_session(model, threads=1, beside=beside, operators=operators)


def backend_on_gpu(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, open_session: Callable[..., Any] = never_run
) -> OnnxRuntimeBackend:
    monkeypatch.setattr(onnxruntime, "open_session", open_session)
    monkeypatch.setattr(onnxruntime, "require_provider", lambda ort: None)
    gpu: Any = SimpleNamespace(memory="cuda")
    backend = OnnxRuntimeBackend(Bundle.open(bundle), device=gpu)
    backend.activate()
    return backend


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("", {}),
        ("-int8", {"weights": "int8"}),
        ("-int4+offset", {"weights": "int4+offset"}),
        ("-half-int4", {"weights": "int4", "dtype": "float16"}),
    ],
)
def test_graphs_of_a_bundle_are_recorded(
    variant: str,
    options: dict[str, Any],
    shared_folder: Path,
    emulated_operators: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = bundles.named(shared_folder, "qwen2-g4-d32", variant, **options)[1]
    assert backend_on_gpu(folder, monkeypatch).recordable


def test_what_runs_on_the_host_is_not_recorded(
    bundle: Path, emulated_operators: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnxruntime, "unrecordable", lambda model: {"NonZero", "Concat"})
    assert not backend_on_gpu(bundle, monkeypatch).recordable
    assert "decode runs step by step" in caplog.text
    assert caplog.text.count("Concat, NonZero") == 1


def test_a_function_counts_by_its_domain() -> None:
    nodes = [
        helper.make_node("Rotation", ["x", "cos", "sin"], ["y"], domain="h2o"),
        helper.make_node("Concat", ["y", "rest"], ["z"], axis=2),
        helper.make_node("SwiGLU", ["z", "z"], ["out"], domain="elsewhere"),
    ]
    value = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "graph", [], [value]))
    assert unrecordable(model) == {"Concat", "SwiGLU"}


# What ONNX Runtime keeps of a run


class CudaSession:
    """As the CUDA provider: Concat copies sizes from pinned host memory, which only a run that waits frees."""

    def __init__(self, model: bytes, **_: Any) -> None:
        graph = load_from_string(model).graph
        self.copies = any(node.op_type == "Concat" for node in graph.node)
        self.pinned = 0  # buffers
        self.waited: list[bool] = []

    def io_binding(self) -> Any:
        def bind(*_: Any) -> None: ...

        return SimpleNamespace(bind_input=bind, bind_output=bind)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.waited.append(options.get_run_config_entry(session.WITHOUT_WAITING) == "0")
        self.pinned = 0 if self.waited[-1] else self.pinned + self.copies


@pytest.mark.parametrize("latent", [False, True])
def test_no_run_leaves_host_memory_to_the_end_of_its_session(
    latent: bool, bundle: Path, shared_folder: Path, emulated_operators: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callback would free it too late: see BoundSession. Other runs do not wait."""
    folder = latent_models.golden_bundle(shared_folder, "v3_yarn_moe") if latent else bundle
    opened: list[CudaSession] = []

    def open_session(model: bytes, **settings: Any) -> CudaSession:
        opened.append(CudaSession(model, **settings))
        return opened[-1]

    backend = backend_on_gpu(folder, monkeypatch, open_session)
    backend.load_hidden()
    tensors = {"x": np.zeros(2, np.float32)}
    for graph in (*(graph.name for graph in backend.bundle.manifest.dense_graphs()), HIDDEN):
        backend.bound(graph, tensors, tensors)()
        backend.infer(graph, tensors, tensors)
    assert [one.pinned for one in opened] == [0] * len(opened)
    assert any(one.copies for one in opened) == latent
    assert all(one.waited == [one.copies] * 2 for one in opened if one.waited)
