"""The TensorRT plugin library without a GPU: its conformance program, TensorRT for RTX's own registry, and a
stand-in for TensorRT of the headers' version.

Needs TensorRT's headers: TENSORRT_ROOT names the folder above `include`, or several of different versions,
separated as in PATH. The library is built with the kernels' CPU emulation, so that enqueue runs too.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt
from h2o_runtime.errors import BackendError
from h2o_runtime.operators import DENSE_OPERATORS, OPERATORS

REPO = Path(__file__).resolve().parents[3]
ROOTS = [root for root in os.environ.get("TENSORRT_ROOT", "").split(os.pathsep) if root]

pytestmark = [
    pytest.mark.skipif(not ROOTS, reason="TENSORRT_ROOT names no TensorRT headers"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]

# In a process of its own, so that a crash in a plugin is a failure of this test alone.
REGISTRY = """
import ctypes
import sys
import numpy
from h2o_runtime.engines import TARGETS
from h2o_runtime.engines.machine import import_tensorrt

way, library, *names = sys.argv[1:]
if way == "polygraphy":
    from polygraphy.backend.trt import LoadPlugins
    LoadPlugins([library])()
    assert "tensorrt_rtx_bindings" not in sys.modules, "Polygraphy loads plugins before TensorRT; so must this"
elif way == "opened":
    ctypes.CDLL(library)
trt = import_tensorrt(TARGETS["tensorrt-rtx"])
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
registry = trt.get_plugin_registry()
if way != "polygraphy":
    assert registry.load_library(library) is not None
for name in names:
    creator = registry.get_creator(name, "1", "h2o")
    assert creator is not None, name
    fields = []
    for field in creator.field_names:
        integer = field.type == trt.PluginFieldType.INT32
        value = numpy.array([2 if integer else 0.125], dtype="int32" if integer else "float32")
        fields.append(trt.PluginField(field.name, value, field.type))
    plugin = creator.create_plugin(name, trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
    assert plugin is not None, name
    if fields:
        assert creator.create_plugin(name, trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD) is None, name
"""

# Opens libraries as Polygraphy does, in order, and closes the last one as trtexec does; prints what was registered.
OPEN = """
import _ctypes
import ctypes
import sys

opened = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[2:]]
_ctypes.dlclose(opened[-1]._handle)
print("mapped" if sys.argv[-1] in open("/proc/self/maps").read() else "gone")
if sys.argv[1]:
    tensorrt = ctypes.CDLL(sys.argv[1])
    tensorrt.registered_creators.restype = ctypes.c_char_p
    print(tensorrt.registered_creators().decode(), end="")
"""

NAMES = [operator.name for operator in (*OPERATORS, *DENSE_OPERATORS) if operator.plugin]


ASKED = {"H2O_TRT_REGISTER": "1"}
REGISTERED = "".join(f"h2o.{name}.1\n" for name in NAMES)


@dataclass(frozen=True)
class Build:
    root: str
    folder: Path

    @property
    def plugins(self) -> str:
        return str(self.folder / "libh2o_trt_plugins.so")

    @property
    def soname(self) -> str:
        """Of the TensorRT that the library is for."""
        text = (Path(self.root) / "include" / "NvInferVersion.h").read_text()
        (major,) = re.findall(r"#define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) (\d+)", text)
        return f"libnvinfer.so.{major}"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ASKED}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=600, env={**inherited, **environment}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module", params=ROOTS)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    root, folder = str(request.param), tmp_path_factory.mktemp("build")
    source, options = str(REPO / "plugins" / "tensorrt"), ["-DH2O_CUDA_EMULATION=ON", "-DH2O_WERROR=ON"]
    run("cmake", "-S", source, "-B", str(folder), f"-DTensorRT_ROOT={root}", *options)
    run("cmake", "--build", str(folder), "-j2", "--target", "h2o_trt_plugins", "h2o_trt_conformance")
    return Build(root, folder)


@pytest.fixture
def stub(build: Build, tmp_path: Path) -> Path:
    """TensorRT's stand-in, which lists what is registered."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler named c++")
    library, source = tmp_path / build.soname, Path(__file__).with_name("registry_stub.cpp")
    folders = ["-isystem", str(Path(build.root) / "include"), "-I", str(source.parent / "emulator")]
    flags = [
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Wno-deprecated-declarations",
        f"-Wl,-soname,{build.soname}",
    ]
    run(compiler, *flags, *folders, str(source), "-o", str(library))
    return library


@pytest.fixture
def rtx() -> Path:
    """The library of TensorRT for RTX."""
    try:
        import_tensorrt(TARGETS["tensorrt-rtx"])
        libraries = importlib.import_module("tensorrt_rtx_libs")
    except (BackendError, ModuleNotFoundError):
        pytest.skip("TensorRT for RTX is not installed from its packages")
    (library,) = (file for path in libraries.__path__ for file in Path(path).glob("libtensorrt_rtx.so.*"))
    return library


def test_plugins_conform(build: Build) -> None:
    run(str(build.folder / "h2o_trt_conformance"), build.plugins)


@pytest.mark.parametrize("way", ["loaded", "opened"])
@pytest.mark.usefixtures("rtx")
def test_a_registry_loads_the_library(build: Build, way: str) -> None:
    """Also where it was opened before, which alone registers nothing."""
    run(sys.executable, "-c", REGISTRY, way, build.plugins, *NAMES)


def test_polygraphy_finds_every_plugin(build: Build, rtx: Path, tmp_path: Path) -> None:
    pytest.importorskip("polygraphy")
    if build.soname != "libnvinfer.so.11":
        pytest.skip("the registry of TensorRT for RTX has the layout of TensorRT 11")
    (tmp_path / build.soname).symlink_to(rtx)
    command = (sys.executable, "-c", REGISTRY, "polygraphy", build.plugins, *NAMES)
    run(*command, LD_LIBRARY_PATH=str(tmp_path), **ASKED)


def test_it_registers_when_asked(build: Build, stub: Path) -> None:
    """With TensorRT where dlopen looks, and where only a path leads to it, as when pip has installed it."""
    opened = run(
        sys.executable, "-c", OPEN, str(stub), build.plugins, LD_LIBRARY_PATH=str(stub.parent), **ASKED
    )
    assert (opened.stdout, opened.stderr) == ("mapped\n" + REGISTERED, "")
    opened = run(sys.executable, "-c", OPEN, str(stub), str(stub), build.plugins, **ASKED)
    assert (opened.stdout, opened.stderr) == ("mapped\n" + REGISTERED, "")


@pytest.mark.parametrize("environment", [{}, {"H2O_TRT_REGISTER": "0"}])
def test_it_does_not_register_unasked(build: Build, stub: Path, environment: dict[str, str]) -> None:
    opened = run(sys.executable, "-c", OPEN, str(stub), str(stub), build.plugins, **environment)
    assert (opened.stdout, opened.stderr) == ("gone\n", "")


def test_it_opens_without_tensorrt(build: Build) -> None:
    opened = run(sys.executable, "-c", OPEN, "", build.plugins)
    assert (opened.stdout, opened.stderr) == ("gone\n", "")
    opened = run(sys.executable, "-c", OPEN, "", build.plugins, **ASKED)
    assert opened.stderr.startswith(f"h2o plugins: not registered: {build.soname}: cannot open shared object")


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
