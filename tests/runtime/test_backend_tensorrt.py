"""The backend of TensorRT engines. A double executes them, on streams whose work waits and meets at random."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.engine_runtime import RuntimeDouble, plugin_library
from tests.prefill import altered

import h2o_runtime.engines.machine as machine_module
from h2o_export.engines.build import build
from h2o_export.engines.selection import BuildOptions, select_engines
from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import Machine
from h2o_runtime.errors import BackendError
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.policies.prefill import ColumnSum, Full, PrefillPolicy, Query

CONTEXT = 400
POLICY = ColumnSum(chunk_size=48, batch_size=96, local=12, heavy=20, dense_tail=20)
FULL = Full(batch_size=96)
QUERY = altered(POLICY, score="query", tile=20, candidates=40)


@pytest.fixture
def double(
    shared_folder: Path, tmp_path: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> RuntimeDouble:
    """TensorRT's double, and a bundle with engines for a batch of 96 tokens."""
    source = bundles.named(shared_folder, "llama-g2-d64-llama3", "-small-chunks", prefill=POLICY)[1]
    bundle = Bundle.open(shutil.copytree(source, tmp_path / "bundle"))
    double = RuntimeDouble(emulated_cuda, bundle)
    monkeypatch.setitem(sys.modules, "tensorrt", double)
    monkeypatch.setattr(machine_module, "compute_capability", lambda: 87)
    monkeypatch.setattr(machine_module, "tensorrt_plugins", lambda: plugin_library(tmp_path))
    make_engines(bundle)
    return double


def make_engines(bundle: Bundle, **choices: Any) -> None:
    options = BuildOptions("tensorrt", max_context=CONTEXT, batch_size=96, **choices)
    build(select_engines(bundle, options), Machine.here("tensorrt"), lambda name: None)


def load(double: RuntimeDouble, context: int = CONTEXT) -> Generator:
    return Generator.load(double.bundle.folder, backend="tensorrt", context=context)


def prompt(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 250, n)


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


def conversation(generator: Generator, policy: PrefillPolicy[Any]) -> list[np.ndarray]:
    """Logits and memory sets of a prompt, an answer, the next turn, and another question to the same text."""
    first = prompt(150)
    found = [generator.prefill(first, policy), *generator.report().last]
    found += [generator.decode(token) for token in (5, 6, 7)]
    found += [generator.prefill(np.concatenate([first, [5, 6, 7], prompt(60, 1)]), policy)]
    found += [*generator.report().last, generator.decode(8)]
    found += [generator.prefill(np.concatenate([first[:100], prompt(40, 3)]), policy)]
    return [*found, generator.boundary_memory(), generator.decode(8)]


def test_a_conversation_equals_the_cpus(double: RuntimeDouble) -> None:
    """In several tiles, so that dense graphs of one tile and attention to another are under way together."""
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        for mine, yours in zip(conversation(ours, QUERY), conversation(theirs, QUERY), strict=True):
            if mine.dtype == np.float32:
                same(mine, yours)
            else:
                np.testing.assert_array_equal(mine, yours)
    assert double.failures == []


def test_engines_with_one_profile_serve_prompts_and_recorded_tokens(double: RuntimeDouble) -> None:
    make_engines(double.bundle, profiles=1, force=True)
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        same(ours.prefill(prompt(60), POLICY), theirs.prefill(prompt(60), POLICY))
        for token in (5, 6, 7):
            same(ours.decode(token), theirs.decode(token))
    assert double.failures == []


def test_rows_at_odd_addresses_pass_through_aligned_buffers(
    shared_folder: Path, double: RuntimeDouble
) -> None:
    """A row of two heads of 32 float16 has 128 bytes: after 153 rows TensorRT refuses the place in the cache."""
    _, folder = bundles.named(
        shared_folder, "qwen2-g4-d32", "-small-chunks-float16", dtype="float16", prefill=POLICY
    )
    double.bundle = Bundle.open(shutil.copytree(folder, double.bundle.folder.parent / "half"))
    make_engines(double.bundle)
    half = Generator.load(double.bundle.folder, context=CONTEXT, device="cpu", dense_form="exact")
    with load(double) as ours, half as theirs:
        for mine, yours in zip(conversation(ours, POLICY), conversation(theirs, POLICY), strict=True):
            if mine.dtype == np.float32:
                assert np.linalg.norm(mine - yours) <= 0.02 * np.linalg.norm(yours)
    assert double.failures == []


def test_batches_beyond_the_engines_run_in_their_tiles(double: RuntimeDouble) -> None:
    """A logical batch is a matter of attention; engines take what they were built for."""
    policy = Query(chunk_size=48, batch_size=4096, local=12, heavy=20)
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        assert double.executions == {"dense_00": 1, "dense_01": 1, "dense_02": 1}  # a warm-up of each
        double.executions.clear()
        same(ours.prefill(prompt(120), policy), theirs.prefill(prompt(120), policy))
        np.testing.assert_allclose(
            ours.logprobs(prompt(97), policy), theirs.logprobs(prompt(97), policy), atol=2e-5
        )
    assert double.executions["dense_01"] == 2 + 2
    assert double.failures == []


def test_all_contexts_share_one_scratch_memory(double: RuntimeDouble) -> None:
    with load(double) as generator:
        generator.prefill(prompt(30), POLICY)
    assert len(double.scratch) == 1
    ((address, size),) = double.scratch
    assert size >= 1000
    assert address % 256 == 0


def test_decode_is_one_graph_over_all_layers(
    double: RuntimeDouble, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded once, then replayed: Python calls TensorRT no more, and the numbers go on being right."""
    caplog.set_level(logging.INFO)
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        for generator in (ours, theirs):
            generator.prefill(prompt(40), POLICY)
            generator.decode(3)
            generator.decode(4)
        assert "recorded the decode step" in caplog.text
        monkeypatch.setattr(ours.loaded.backend, "infer", None)
        executions = double.executions["dense_01"]
        for token in range(5, 25):
            same(ours.decode(token), theirs.decode(token))
        assert double.executions["dense_01"] == executions + 20
    assert double.failures == []


def test_rows_of_any_sessions_have_one_recording_for_each_size(
    double: RuntimeDouble, caplog: pytest.LogCaptureFixture
) -> None:
    """A step of three is padded to four, and replayed with other sessions in other places."""
    caplog.set_level(logging.INFO)
    counts = (3, 4, 3, 1, 1, 5, 4)
    prompts, texts = [prompt(30 + 9 * i, i) for i in range(5)], [[] for _ in range(5)]
    got: list[list[np.ndarray]] = [[] for _ in prompts]
    with load(double) as ours:
        generators = [ours, *(Generator(ours.loaded) for _ in prompts[1:])]
        for generator, ids in zip(generators, prompts, strict=True):
            generator.prefill(ids, FULL)
        assert ours.loaded.forward.most_step_rows == MOST_STEP_ROWS
        for step, count in enumerate(counts):
            chosen, executions = np.roll(range(5), step)[:count], double.executions["dense_01"]
            rows = [StepRow(3 + step, generators[which].session) for which in chosen]
            for which, row in zip(chosen, ours.loaded.forward.decode_rows(rows), strict=True):
                got[which].append(row.copy())
                texts[which].append(3 + step)
                generators[which].session.decoded([3 + step])
            assert double.executions["dense_01"] == executions + 1
    recorded = [record.message for record in caplog.records if "recorded the decode step" in record.message]
    assert [message.split(" with ")[1].split(" as ")[0] for message in recorded] == ["4 rows", "1 row"]
    with Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        for ids, tokens, logits in zip(prompts, texts, got, strict=True):
            theirs.reset()
            theirs.prefill(ids, FULL)
            for token, ours_then in zip(tokens, logits, strict=True):
                same(ours_then, theirs.decode(token))
    assert double.failures == []


def test_engines_that_take_two_rows_of_a_step(double: RuntimeDouble) -> None:
    """As earlier versions built them."""
    path = double.bundle.folder / "engines" / "tensorrt" / "manifest.json"
    manifest = json.loads(path.read_text())
    for engine in manifest["engines"]:
        for profile in engine["profiles"]:
            if profile["name"] == "decode":
                for shape in profile["shapes"].values():
                    if shape["max"]:
                        shape["max"][0] = min(shape["max"][0], 2)
    path.write_text(json.dumps(manifest))
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        assert ours.loaded.forward.most_step_rows == 2
        for generator in (ours, theirs):
            generator.prefill(prompt(40), POLICY)
        together = ours.loaded.forward.decode_rows([StepRow(token, ours.session) for token in (3, 4)])
        for token, row in zip((3, 4), together.copy(), strict=True):
            same(row, theirs.decode(token))
    assert double.failures == []


def test_nothing_is_allocated_once_sizes_have_been_met(
    double: RuntimeDouble, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a token waits for the GPU once."""
    calls: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def then(*arguments: Any) -> Any:
            calls.append(name)
            return call(*arguments)

        return then

    with load(double) as generator:
        generator.prefill(prompt(100), QUERY)
        generator.decode(3)
        generator.decode(4)
        generator.reset()
        with monkeypatch.context() as patch:
            for owner, name in (
                (emulated_cuda, "Memory"),
                (emulated_cuda, "PinnedMemory"),
                (emulated_cuda.Stream, "synchronize"),
            ):
                patch.setattr(owner, name, counted(name, getattr(owner, name)))
            generator.prefill(prompt(100, 1), QUERY)
            for token in range(5):
                generator.decode(token)
            assert calls == 6 * ["synchronize"]


def test_decode_goes_on_where_nothing_can_be_recorded(
    double: RuntimeDouble, caplog: pytest.LogCaptureFixture
) -> None:
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        for generator in (ours, theirs):
            generator.prefill(prompt(40), POLICY)
            generator.decode(3)
        double.refusals = 1
        same(ours.decode(4), theirs.decode(4))
        assert "cannot be recorded" in caplog.text
        same(ours.decode(5), theirs.decode(5))
        double.refusals = 1
        with pytest.raises(BackendError, match=r"dense_00\.plan: TensorRT failed in execute_async_v3"):
            ours.decode(6)
    assert double.failures == []


def test_decode_of_a_mixture_of_experts_is_not_recorded(
    double: RuntimeDouble, caplog: pytest.LogCaptureFixture
) -> None:
    """A recording would give every token's rows to the experts that the first token's rows went to."""
    caplog.set_level(logging.INFO)
    manifest = double.bundle.folder / "manifest.json"
    written = json.loads(manifest.read_text())
    written["model"]["experts"] = {"layers": 1, "count": 8, "chosen": 2, "size": 32, "shared_size": 32}
    manifest.write_text(json.dumps(written))
    with load(double) as ours, Generator.load(double.bundle.folder, context=CONTEXT, device="cpu") as theirs:
        for generator in (ours, theirs):
            generator.prefill(prompt(40), POLICY)
        for token in range(3, 7):
            same(ours.decode(token), theirs.decode(token))
    told = [record.message for record in caplog.records if "step by step" in record.message]
    assert len(told) == 1
    assert "depends on the router" in told[0]
    assert "recorded the decode step" not in caplog.text
    assert double.failures == []


# What is refused


def test_a_plan_that_tensorrt_refuses(double: RuntimeDouble) -> None:
    double.refuse_plan = True
    with pytest.raises(
        BackendError, match=r"dense_00\.plan: TensorRT cannot load it: the plan is from the future$"
    ):
        load(double)
