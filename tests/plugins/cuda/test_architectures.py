"""nvcc compiles the kernels to machine code for every GPU from SM80 on that it supports, and to PTX for later
ones.

Compiling everything for all of them takes long. So the library is built for one, and one small source for all, at
night, by the command that CMake has for it; all sources have the same options.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
SOURCES = REPO / "plugins" / "kernels" / "cuda"
NVCC = shutil.which("nvcc")
PIP_CUOBJDUMP = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "bin", "cuobjdump")
CUOBJDUMP = shutil.which("cuobjdump") or (str(PIP_CUOBJDUMP) if PIP_CUOBJDUMP.exists() else None)

pytestmark = [
    pytest.mark.skipif(NVCC is None or shutil.which("cmake") is None, reason="needs nvcc and cmake"),
    pytest.mark.skipif(CUOBJDUMP is None, reason="cuobjdump is not installed"),
]


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


def images(file: Path) -> tuple[set[int], set[int]]:
    """Compute capabilities of the machine code and of the PTX in an object or library."""
    cubins, ptx = (run(CUOBJDUMP, kind, file) for kind in ("--list-elf", "--list-ptx"))
    found = [set(map(int, re.findall(r"\.sm_(\d+)\.", listed))) for listed in (cubins, ptx)]
    return found[0], found[1]


def loads(capability: int, cubins: set[int]) -> bool:
    """Machine code runs on its own GPU and on those of the same generation that came later."""
    return any(cubin // 10 == capability // 10 and cubin <= capability for cubin in cubins)


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_by_default_the_kernels_load_on_every_gpu_that_nvcc_knows(compiles: bool, tmp_path: Path) -> None:
    """By the command of the sources; and, at night, by what it makes of one."""
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
    if compiles:
        run("cmake", "--build", tmp_path, "--target", "h2o_operators")  # generates a header
        step = next(each for each in kernels if each["file"].endswith("step.cu"))
        run("sh", "-c", step["command"], cwd=Path(step["directory"]))
        assert images(next(tmp_path.rglob("step.cu.o"))) == (cubins, ptx)
    capabilities = known()
    assert [each for each in capabilities if not loads(each, cubins)] == []
    # Jetsons load no machine code of desktop GPUs, nor the other way round.
    assert {80, 86, 87, 89, 90, 100, 110, 120} & set(capabilities) == cubins
    assert ptx == {max(cubins)}


@pytest.mark.parametrize(
    ("asked", "built", "answer"),
    [
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
