"""The TensorRT plugin library without a GPU: its conformance program, and TensorRT for RTX's own registry.

Needs TensorRT's headers: TENSORRT_ROOT names the folder above `include`, or several of different versions,
separated as in PATH. The library is built with the kernels' CPU emulation, so that enqueue runs too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt
from h2o_runtime.errors import BackendError

REPO = Path(__file__).resolve().parents[3]
ROOTS = [root for root in os.environ.get("TENSORRT_ROOT", "").split(os.pathsep) if root]

pytestmark = [
    pytest.mark.skipif(not ROOTS, reason="TENSORRT_ROOT names no TensorRT headers"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]

# In a process of its own, so that a crash in a plugin is a failure of this test alone.
REGISTRY = """
import sys
from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt

trt = import_tensorrt(TARGETS["tensorrt-rtx"])
library, *names = sys.argv[1:]
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
registry = trt.get_plugin_registry()
assert registry.load_library(library) is not None
for name in names:
    creator = registry.get_creator(name, "1", "h2o")
    assert creator is not None, name
    fields = []
    for field in creator.field_names:
        integer = field.type == trt.PluginFieldType.INT32
        value = __import__("numpy").array([2 if integer else 0.125], dtype="int32" if integer else "float32")
        fields.append(trt.PluginField(field.name, value, field.type))
    plugin = creator.create_plugin(name, trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    assert plugin is not None, name
    if fields:
        assert creator.create_plugin(name, trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD) is None, name
"""

OPERATORS = [
    "ChunkedIntraAttention",
    "MemoryGather",
    "MemoryAttention",
    "OnlineSoftmaxFusion",
    "CandidateScore",
    "MemorySelect",
    "CachedAttention",
    "MemoryFusedAttention",
]


def run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("root", ROOTS)
def test_plugins_conform(root: str, tmp_path: Path) -> None:
    source, options = str(REPO / "plugins" / "tensorrt"), ["-DH2O_CUDA_EMULATION=ON", "-DH2O_WERROR=ON"]
    run("cmake", "-S", source, "-B", str(tmp_path), f"-DTensorRT_ROOT={root}", *options)
    run("cmake", "--build", str(tmp_path), "-j2", "--target", "h2o_trt_plugins", "h2o_trt_conformance")
    library = str(tmp_path / "libh2o_trt_plugins.so")
    run(str(tmp_path / "h2o_trt_conformance"), library)
    try:
        import_tensorrt(TARGETS["tensorrt-rtx"])
    except BackendError:
        return
    run(sys.executable, "-c", REGISTRY, library, *OPERATORS)


def test_pip_installs_the_library_where_the_package_looks_for_it(tmp_path: Path) -> None:
    """As docs/jetson.md has it, but for the compiler."""
    defines = {"H2O_CUDA": "ON", "H2O_TENSORRT": "ON", "H2O_CUDA_EMULATION": "ON", "TensorRT_ROOT": ROOTS[0]}
    settings = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
    settings.append(f"-Cbuild-dir={tmp_path / 'build'}")
    flags = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(tmp_path))
    run(sys.executable, "-m", "pip", "wheel", "--quiet", *flags, *settings, str(REPO))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = "import h2o_plugins; print(h2o_plugins.tensorrt_plugins())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == tmp_path / "site" / "h2o_plugins" / "libh2o_trt_plugins.so"
