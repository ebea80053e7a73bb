"""What tests of all folders share: the example model as a bundle, exported once per test session."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

# Before NumPy and torch are loaded: the references' matrices are small, and threads of tests that run side by
# side would wait for each other, five times as long as the work itself takes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # some tests import ONNX Runtime before h2o_runtime

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

if TYPE_CHECKING:
    from h2o_runtime import Generator

# A red run is then red again, and is about the change that it tests, not about a busy machine.
# `HYPOTHESIS_PROFILE=explore` looks further.
_at_any_speed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", _at_any_speed, derandomize=True)
settings.register_profile("explore", _at_any_speed, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny-llama"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mixes", type=int, default=2, help="random mixes of requests in each kind of cache")
    parser.addoption("--requests", type=int, default=50, help="random requests to servers of both kinds")
    parser.addoption("--schemas", type=int, default=40, help="random JSON schemas of answers")


# What waits for one of these builds the emulated GPU, exports the real model, or starts a browser.
SLOW_FIXTURES = {"_emulated_cuda_module", "program", "smollm2", "smollm2_bundle", "browser"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("nightly"):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # markers have left out theirs by then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Modules with slow tests first, then those of many tests: a long one that starts last keeps one worker busy
    # while the others idle.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, 0 if item.path in slow else -count[item.path]))


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """A million objects of imported libraries stay: the garbage collector need not look at them time and again.

    And torch's exporter makes hundreds of thousands that it looks at for nothing.
    """
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder of the whole test session, the same one for all pytest-xdist workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def tiny_bundle(shared_folder: Path) -> Path:
    """examples/tiny-llama as a float32 bundle. Read-only for tests: copy it before you change a file."""
    bundle = shared_folder / "tiny-bundle"
    with (shared_folder / "tiny-bundle.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker exports, the others wait for it
        if not bundle.exists():
            _export(EXAMPLE, bundle)
    return bundle


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of a real model; tests that need it are skipped where its package is not installed."""
    from tests import smollm2

    path = smollm2.find()
    if path is None:
        pytest.skip(smollm2.MISSING)
    return path


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2: Path, shared_folder: Path) -> Path:
    """The real model as a float32 bundle. Read-only for tests."""
    bundle = shared_folder / "smollm2-bundle"
    with (shared_folder / "smollm2-bundle.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not bundle.exists():
            _export(smollm2, bundle)
    return bundle


@pytest.fixture(scope="session")
def _loaded_generator(tiny_bundle: Path) -> Iterator[Generator]:
    from h2o_runtime import Generator

    with Generator.load(tiny_bundle) as generator:
        yield generator


@pytest.fixture
def tiny_generator(_loaded_generator: Generator) -> Generator:
    """The example model, context 8192, with an empty cache. Loaded once a worker: do not close it."""
    _loaded_generator.reset()
    return _loaded_generator


@pytest.fixture(scope="session")
def _emulated_cuda_module() -> ModuleType:
    from tests import emulation

    reason = emulation.missing()
    if reason is not None:
        pytest.skip(reason)
    return emulation.load()


@pytest.fixture
def emulated_cuda(_emulated_cuda_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """h2o_plugins._cuda on the CPU, for this test alone: the others find no GPU that is none."""
    import h2o_plugins
    from tests.emulation import short_warm_up

    monkeypatch.setitem(sys.modules, "h2o_plugins._cuda", _emulated_cuda_module)
    monkeypatch.setattr(h2o_plugins, "_cuda", _emulated_cuda_module, raising=False)
    short_warm_up(monkeypatch)
    return _emulated_cuda_module


@pytest.fixture
def emulated_operators(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operators for ONNX Runtime's CUDA provider on its CPU provider, where the backend looks for them."""
    from h2o_runtime.dense_graphs import cuda_provider
    from tests import emulation

    reason = emulation.missing()
    if reason is not None:
        pytest.skip(reason)
    library = emulation.build_onnxruntime_operators()
    monkeypatch.setattr(cuda_provider, "operators", lambda: library)
    return library


@pytest.fixture
def dense_graphs_wait(emulated_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime has the emulation's memory, and knows nothing of streams: a dense graph runs when it is called.

    So the call waits until the dense lane has done what came before, and what that waits for. Attention is as late
    as it may be.
    """
    from h2o_runtime.backend import Tensors
    from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
    from h2o_runtime.devices.cuda import CudaDevice

    infer, bound = OnnxRuntimeBackend.infer, OnnxRuntimeBackend.bound

    def wait(backend: OnnxRuntimeBackend) -> None:
        if isinstance(backend.device, CudaDevice):
            backend.device.lanes.dense.synchronize()

    def infer_then(self: OnnxRuntimeBackend, graph: str, inputs: Tensors, outputs: Tensors) -> None:
        wait(self)
        infer(self, graph, inputs, outputs)

    def bound_then(
        self: OnnxRuntimeBackend, graph: str, inputs: Tensors, outputs: Tensors
    ) -> Callable[[], None]:
        run = bound(self, graph, inputs, outputs)

        def call() -> None:
            wait(self)
            run()

        return call

    monkeypatch.setattr(OnnxRuntimeBackend, "infer", infer_then)
    monkeypatch.setattr(OnnxRuntimeBackend, "bound", bound_then)


@pytest.fixture(scope="session")
def heldout_ids() -> NDArray[np.int64]:
    """Token ids of text that the example model was not trained on, int64 [N]; N is over 100,000."""
    from h2o_runtime.text import Tokenizer

    text = (EXAMPLE / "heldout.txt").read_text(encoding="utf-8")
    return np.array(Tokenizer.load(EXAMPLE).encode(text), np.int64)


def _export(checkpoint: Path, bundle: Path) -> None:
    """Write the bundle and rename it into place; torch is imported only where an export really runs."""
    from h2o_export.checkpoints import open_checkpoint
    from h2o_export.exporter import ExportOptions, write_bundle
    from h2o_export.staging import staged_folder
    from tests import traces

    traces.share()
    with staged_folder(bundle, force=False) as folder:
        options = ExportOptions(checkpoint=str(checkpoint), output=bundle, weights="float")
        write_bundle(open_checkpoint(str(checkpoint)), options, folder, progress=lambda stage: None)
