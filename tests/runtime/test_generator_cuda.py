"""The runtime on a GPU, whose place the emulation takes: equal to the runtime on the CPU.

ONNX Runtime executes the dense graphs on the emulation's memory, which is the host's, each after what its lane has.
Attention runs as late as it may.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.prefill import altered, prefill_of

from h2o_runtime import Generator
from h2o_runtime.caches import Contiguous, Paged
from h2o_runtime.caches.stored import CacheDtype
from h2o_runtime.errors import BackendError, Cancelled, ConfigError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.policies.prefill import Full

pytestmark = pytest.mark.usefixtures("dense_graphs_wait", "models_stay_loaded", "small_blocks")

CONTEXT = 300
SMALL: dict[str, Any] = {"chunk_size": 48, "batch_size": 100, "local": 12, "heavy": 20}
POLICIES = {
    "full": Full(batch_size=100),
    "colsum": prefill_of(**SMALL, score="colsum", dense_tail=20),
    "query": prefill_of(**SMALL, score="query", tile=20, candidates=40),
    "window, query heads": prefill_of(**SMALL, score="window", window=12, heads="query", dense_tail=40),
}


@pytest.fixture
def bundle(shared_folder: Path) -> Path:
    return bundles.named(shared_folder, "llama-g2-d64-llama3")[1]


@pytest.fixture
def cuda(bundle: Path, emulated_cuda: ModuleType) -> Iterator[Generator]:
    with Generator.load(bundle, context=CONTEXT, device="cuda") as generator:
        yield generator


@pytest.fixture
def cpu(bundle: Path) -> Iterator[Generator]:
    with Generator.load(bundle, context=CONTEXT, device="cpu") as generator:
        yield generator


def prompt(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 250, n)


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(ours - theirs).max() <= 2e-5 * np.abs(theirs).max()


def same_sets(cuda: Generator, cpu: Generator) -> None:
    for ours, theirs in zip(cuda.report().last, cpu.report().last, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(cuda.boundary_memory(), cpu.boundary_memory())


def test_a_request_equals_the_cpus(cuda: Generator, cpu: Generator) -> None:
    """Fresh, decoded, a conversation's long and short turns, a shared beginning: logits and memory sets.

    Tests below have column sums, and test_layer_kinds_cuda.py has queries.
    """
    policy = POLICIES["window, query heads"]
    first = prompt(130)
    same(cuda.prefill(first, policy), cpu.prefill(first, policy))
    same_sets(cuda, cpu)
    for token in (5, 6, 7, 8):
        same(cuda.decode(token), cpu.decode(token))
    turn = np.concatenate([first, [5, 6, 7, 8], prompt(50, 1)])
    same(cuda.prefill(turn, policy), cpu.prefill(turn, policy))
    same_sets(cuda, cpu)
    turn = np.concatenate([turn, prompt(7, 2)])
    same(cuda.prefill(turn, policy), cpu.prefill(turn, policy))
    same(cuda.decode(9), cpu.decode(9))
    other = np.concatenate([first[:120], prompt(40, 3)])
    same(cuda.prefill(other, policy), cpu.prefill(other, policy))
    assert cuda.reused == cpu.reused > 0
    same_sets(cuda, cpu)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("int8", marks=pytest.mark.nightly)])
def test_rows_that_are_stored_shorter(dtype: CacheDtype, bundle: Path, emulated_cuda: ModuleType) -> None:
    """Integers next to a half may be rounded either way, which the logits show."""
    logits = []
    for device in ("cuda", "cpu"):
        cache = Contiguous(rows=dtype)
        with Generator.load(bundle, context=CONTEXT, device=device, cache=cache) as generator:  # type: ignore[arg-type]
            first = generator.prefill(prompt(70), POLICIES["colsum"])
            steps = [generator.decode(token) for token in (5, 6, 7)]  # the last two of a recording
            again = generator.prefill(
                np.concatenate([prompt(70), [5, 6, 7], prompt(50, 1)]), POLICIES["colsum"]
            )
            logits.append((first, *(step.copy() for step in steps), again))
    for ours, theirs in zip(*logits, strict=True):
        assert np.abs(ours - theirs).max() <= (0.02 if dtype == "int8" else 1e-3) * np.abs(theirs).max()


def test_pages_are_for_the_cpu(bundle: Path, emulated_cuda: ModuleType) -> None:
    with pytest.raises(ConfigError, match="`cache=paged` works on the CPU only"):
        Generator.load(bundle, context=CONTEXT, device="cuda", cache=Paged())


@pytest.mark.parametrize(
    "length", [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in (48, 49, 101, 299))]
)
def test_prompts_of_every_kind_of_length(length: int, cuda: Generator, cpu: Generator) -> None:
    ids = prompt(length)
    same(cuda.prefill(ids, POLICIES["colsum"]), cpu.prefill(ids, POLICIES["colsum"]))
    same(cuda.decode(3), cpu.decode(3))


def test_time_is_measured_by_kind_of_work(cuda: Generator) -> None:
    cuda.prefill(prompt(110), POLICIES["colsum"])
    timer = cuda.timer
    assert min(timer.seconds[name] for name in ("dense", "phase1", "phase2", "tail")) > 0
    cuda.prefill(prompt(40), POLICIES["full"])
    assert cuda.timer.seconds.get("phase2", 0) == 0 < cuda.timer.seconds["phase1"]


def test_a_cancelled_prefill_leaves_a_sound_generator(cuda: Generator, cpu: Generator) -> None:
    calls = iter(range(10_000))
    with pytest.raises(Cancelled):
        cuda.prefill(prompt(200), POLICIES["colsum"], Watch(cancelled=lambda: next(calls) > 9))
    ids = prompt(60, 4)
    same(cuda.prefill(ids, POLICIES["colsum"]), cpu.prefill(ids, POLICIES["colsum"]))
    same(cuda.decode(3), cpu.decode(3))


def test_a_warm_up_reads_a_prompt_and_leaves_nothing(
    cuda: Generator, cpu: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels of the bundle's policy run before the first prompt does."""
    ran: set[str] = set()
    rule = altered(POLICIES["query"], dense_tail=20, candidates=32)  # the first batch is narrowed too
    provider, policy = cuda.spec.layers.providers[0], rule
    monkeypatch.setattr(type(provider), "run", told(type(provider).run, ran))
    forward: Any = cuda.loaded.forward
    type(forward).warm_up.__wrapped__(forward, policy, cuda.session)
    assert ran >= {"ChunkedIntraAttention", "BlockSelect", "PromptAttention"}
    assert cuda.length == 0
    ids = prompt(110)
    same(cuda.prefill(ids, policy), cpu.prefill(ids, policy))
    assert cuda.reused == 0
    same_sets(cuda, cpu)


def told(run: Callable[..., None], ran: set[str]) -> Callable[..., None]:
    """Which operators run."""

    def run_then(self: Any, operator: Any, *rest: Any, **tensors: Any) -> None:
        ran.add(operator.name)
        run(self, operator, *rest, **tensors)

    return run_then


def test_a_bundle_whose_policy_is_for_the_cpu_loads(
    bundle: Path, tmp_path: Path, emulated_cuda: ModuleType
) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["prefill"]["missed"] = 0.0025
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with Generator.load(folder, context=CONTEXT, device="cuda") as generator:
        with pytest.raises(ConfigError, match="works only on the CPU"):
            generator.prefill(prompt(20))
        generator.prefill(prompt(20), POLICIES["full"])


# What is refused


def test_without_the_module_it_is_said_how_to_build_it(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h2o_plugins._cuda", None)
    with pytest.raises(BackendError, match=r"cmake\.define\.H2O_CUDA=ON"):
        Generator.load(bundle, device="cuda")


def test_without_a_gpu_it_is_said_what_to_use(
    bundle: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated_cuda, "device_count", lambda: 0)
    with pytest.raises(BackendError, match="no NVIDIA GPU was found: use `device=cpu`"):
        Generator.load(bundle, device="cuda")


def test_an_onnx_runtime_without_cuda_is_told(
    bundle: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated_cuda, "MEMORY", "cuda")
    with pytest.raises(BackendError, match=r"no CUDA provider.*h2o-edge\[gpu\]"):
        Generator.load(bundle, device="cuda")


@pytest.mark.parametrize("integrated", [False, True])
def test_a_context_that_does_not_fit_is_told_with_numbers(
    bundle: Path, emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch, integrated: bool
) -> None:
    """A GPU that shares the host's memory counts the page cache as used."""
    monkeypatch.setenv("H2O_EMULATION_MEMORY_MB", "256")
    monkeypatch.setenv("H2O_EMULATION_INTEGRATED", str(int(integrated)))
    with pytest.raises(BackendError, match=r"the GPU has .* MiB free.*lower the context") as raised:
        Generator.load(bundle, device="cuda", context=1 << 20)
    assert ("cached files count as used" in str(raised.value)) == integrated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"device": "cpu", "backend": "tensorrt"}, "runs on an NVIDIA GPU only"),
        ({"device": "cuda", "attention": "functions"}, "runs on the CPU only"),
    ],
)
def test_contradictions(
    options: dict[str, Any], message: str, bundle: Path, emulated_cuda: ModuleType
) -> None:
    with pytest.raises(ConfigError, match=message):
        Generator.load(bundle, **options)
