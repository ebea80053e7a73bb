"""h2o-build in processes of its own: what it writes, what it says, and what it leaves when it is stopped."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests import bundles
from tests.cli.conftest import Run, Start
from tests.engines import tensorrt_rtx

from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.engines import EngineManifest

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def bundle(shared_folder: Path, tmp_path: Path) -> Path:
    """Two layers. A copy, no hard links: ONNX reads no weights from files that have a second name."""
    source = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    return shutil.copytree(source, tmp_path / "bundle")


def without(package: str) -> str:
    """Code for a process in which a package, as far as Python can tell, is not installed."""
    return (
        f"import sys\nfor name in ({package!r}, {package + '_bindings'!r}):\n    sys.modules[name] = None\n"
    )


def test_a_dry_run_needs_no_tensorrt_and_writes_nothing(h2o: Run, bundle: Path) -> None:
    flags = ("--target", "tensorrt", "-c", 2048, "-b", 1024, "--dry-run", "--json")
    done = h2o("build", bundle, *flags, code=without("tensorrt"))
    assert (done.returncode, done.stderr) == (0, b"")
    job = json.loads(done.stdout)
    assert (job["target"], job["max_context"], job["batch_size"]) == ("tensorrt", 2048, 1024)
    names = [engine["name"] for engine in job["engines"]]
    assert names == ["dense_00", "dense_01", "dense_02", "phase1", "phase2", "decode"]
    prefill = job["engines"][1]["profiles"][1]
    assert (prefill["name"], prefill["shapes"]["cos"]["opt"]) == ("prefill", [1024, 32])
    assert not (bundle / "engines").exists()


def test_a_dry_run_refuses_what_the_build_refuses(h2o: Run, bundle: Path) -> None:
    target = bundle / "engines" / "tensorrt"
    target.mkdir(parents=True)
    (target / "manifest.json").write_text("{}")
    for flags, code, says in (
        (("--target", "tensorrt"), 1, f"{target}: engines are there already; add --force"),
        (
            ("--force", "--target", f"tensorrt plugins={bundle}/nothing.so"),
            1,
            "nothing.so: no such file; name the plugin",
        ),
        (("--force", "--target", "tensorrt sm=87,90"), 2, "sm is 87 and 90, but TensorRT builds only for"),
    ):
        done = h2o("build", bundle, "--dry-run", *flags)
        assert (done.returncode, says in done.stderr.decode()) == (code, True), done.stderr


def test_a_dry_run_for_people(h2o: Run, bundle: Path) -> None:
    done = h2o("build", bundle, "--target", "tensorrt-rtx", "--dry-run")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert "4096 × 4 × 64" in text
    assert "phase1" not in text
    assert f"3 engines would be written to {bundle}/engines/tensorrt-rtx" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ((), 2, "Missing option '--target'"),
        (("--target", "tensorrt sm=8.7"), 2, "sm must be integers from 1 to"),
        (("--target", "tensorrt-rtx plugins=x.so"), 2, "--target plugins are only for the target tensorrt"),
        (("--target", "tensorrt", "-c", 1 << 30), 2, "--ctx-size must be from 1 to 16,777,216"),
    ],
)
def test_misuse(h2o: Run, bundle: Path, flags: tuple[object, ...], code: int, says: str) -> None:
    done = h2o("build", bundle, *flags)
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (code, b"")
    assert says in message
    assert "Traceback" not in message
    assert not (bundle / "engines").exists()


def test_a_missing_package_is_named_with_its_extra(h2o: Run, bundle: Path) -> None:
    done = h2o("build", bundle, "--target", "tensorrt-rtx sm=86", code=without("tensorrt_rtx"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith("error: TensorRT")
    assert "is not installed: pip install 'h2o-edge[tensorrt-rtx]'" in done.stderr.decode()


# With TensorRT for RTX


def test_engines_for_two_generations_of_gpus(h2o: Run, bundle: Path) -> None:
    version = tensorrt_rtx().__version__
    flags = ("--target", "tensorrt-rtx sm=120,86", "-c", 2048, "--json")
    done = h2o("build", bundle, *flags)
    assert (done.returncode, done.stderr) == (0, b"")
    folder = bundle / "engines" / "tensorrt-rtx"
    manifest = EngineManifest.read(folder)
    assert manifest.sm == (86, 120)
    assert json.loads(done.stdout) == {"folder": str(folder), **json.loads(manifest.model_dump_json())}

    again = h2o("build", bundle, *flags)
    assert (again.returncode, again.stdout) == (1, b"")
    assert "engines are there already; add --force" in again.stderr.decode()

    forced = h2o("build", bundle, "--target", "tensorrt-rtx sm=86", "--force")
    assert (forced.returncode, forced.stderr) == (0, b"")
    sentence = " ".join(forced.stdout.decode().split())  # a log of 150 columns
    assert sentence.startswith(f"wrote {folder}: 3 engines for SM86, ")
    assert f"with TensorRT for RTX {version}, up to 16,384 tokens" in sentence
    assert [path.name for path in folder.parent.iterdir()] == ["tensorrt-rtx"]
    assert Bundle.open(bundle).altered_files() == []


@pytest.mark.parametrize(
    ("sm", "says"),
    [("", "no NVIDIA GPU was found here; name the compute capability"), (" sm=87", "but is 87")],
)
def test_a_gpu_that_cannot_be_built_for(h2o: Run, bundle: Path, sm: str, says: str) -> None:
    tensorrt_rtx()
    if Path("/proc/driver/nvidia").exists() and not sm:
        pytest.skip("there is an NVIDIA GPU")
    done = h2o("build", bundle, "--target", f"tensorrt-rtx{sm}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("error: --target sm")
    assert says in done.stderr.decode()


def test_an_interrupted_build_leaves_nothing(start_h2o: Start, bundle: Path) -> None:
    tensorrt_rtx()
    process = start_h2o("build", bundle, "--target", "tensorrt-rtx sm=86")
    folder, end = bundle / "engines", time.monotonic() + 120
    while not any(folder.glob(".tensorrt-rtx.*")):
        assert process.poll() is None, "ended before it could be interrupted"
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=120)
    assert (out, err) == (b"", b"stopped\n")
    assert process.returncode == 128 + signal.SIGHUP
    assert not folder.exists()
