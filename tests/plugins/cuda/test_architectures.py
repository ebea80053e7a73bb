"""nvcc compiles the kernels to machine code for every GPU from SM80 on that it supports, and to PTX for later
ones.

Compiling everything for all of them takes long. So the library is built for one, and this is about the command that
CMake has for all of them, which is the same for all sources.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
SOURCES = REPO / "plugins" / "kernels" / "cuda"
NVCC = shutil.which("nvcc")
DEFAULT = re.findall(r'H2O_CUDA_ARCHITECTURES "([\d;]+)"', (SOURCES / "CMakeLists.txt").read_text())[0]

pytestmark = pytest.mark.skipif(NVCC is None or shutil.which("cmake") is None, reason="needs nvcc and cmake")


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def configure(folder: Path, *options: str) -> str:
    """CMake's messages."""
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    return run(
        "cmake", "-S", SOURCES, "-B", folder, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *generator, *options
    )


def choose(asked: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What CMake makes of a list, without a compiler's having to be tried."""
    script = folder / "choose.cmake"
    script.write_text(
        f'include("{SOURCES / "architectures.cmake"}")\nh2o_cuda_architectures(BUILT "${{WANTED}}")\n'
    )
    options = [f"-DCMAKE_CUDA_COMPILER={NVCC}", f"-DWANTED={asked}"]
    return subprocess.run(["cmake", *options, "-P", str(script)], capture_output=True, text=True, check=False)


def known() -> list[int]:
    """Compute capabilities of nvcc that the kernels can run on."""
    codes = re.findall(r"^sm_(\d+)$", run(NVCC, "--list-gpu-code"), re.MULTILINE)
    return sorted(int(code) for code in codes if int(code) >= 80)


def loads(capability: int, cubins: set[int]) -> bool:
    """Machine code runs on its own GPU and on those of the same generation that came later."""
    return any(cubin // 10 == capability // 10 and cubin <= capability for cubin in cubins)


@pytest.mark.nightly
def test_by_default_the_kernels_load_on_every_gpu_that_nvcc_knows(tmp_path: Path) -> None:
    assert "CUDA kernels for 80-real;86-real;87-real;" in configure(tmp_path)
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    kernels = [each for each in commands if each["file"].endswith(".cu")]
    assert len(kernels) == len(list(SOURCES.glob("*.cu")))
    targets = {tuple(re.findall(r'--generate-code=[^\s"]+', each["command"])) for each in kernels}
    assert len(targets) == 1, "one source is built for other GPUs than another"

    told = " ".join(targets.pop())
    cubins, ptx = (
        set(map(int, re.findall(rf"\b{kind}_(\d+)[],]", told))) for kind in ("sm", "code=.compute")
    )
    capabilities = known()
    assert [each for each in capabilities if not loads(each, cubins)] == []
    # Jetsons load no machine code of desktop GPUs, nor the other way round.
    assert {80, 86, 87, 89, 90, 100, 110, 120} & set(capabilities) == cubins
    assert ptx == {max(cubins)}


@pytest.mark.parametrize(
    ("asked", "built", "answer"),
    [
        (DEFAULT, True, "CUDA kernels for 80-real;86-real;87-real;"),
        ("90;80", True, "CUDA kernels for 90;80-real"),
        ("75;87", True, "sm_75 is not built"),
        ("86;999", True, "does not know sm_999; not built"),
        ("87-real;90a", True, "CUDA kernels for 87-real;90a"),
        ("volta", False, 'has "volta"'),
        ("75", False, "Nothing can be built"),
        ("native", False, "needs a GPU in this machine"),
    ],
)
def test_what_is_asked_for_is_built_or_refused(asked: str, built: bool, answer: str, tmp_path: Path) -> None:
    if asked == "native" and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    done = choose(asked, tmp_path)
    assert (done.returncode == 0) is built
    assert answer in " ".join((done.stdout + done.stderr).split())
