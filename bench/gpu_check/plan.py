"""The steps of a GPU check, the most valuable first."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.gpu_check.steps import NotRun, Step

REPO = Path(__file__).resolve().parents[2]
KERNELS = Path("plugins", "kernels", "cuda")
TABLES = (
    *(
        "ceilings",
        "flash",
        "phase1",
        "phase2",
        "decode",
        "step rows",
        "query",
        "pages",
        "lines",
        "subquadratic",
    ),
    *("layer kinds", "int4", "latent", "layer", "repeatable"),
)
SANITIZERS = ("racecheck", "synccheck", "initcheck")  # memcheck runs first, on its own
BACKENDS = ("onnxruntime", "tensorrt", "tensorrt-rtx")
INTEGERS = ("int8", "int4", "half-int8", "half-int4")  # bundles with integer weights; of two in float16
UNKNOWN_GPU = "--target sm must be one of"  # what h2o-build prints of a GPU that the target does not take
RTX = ("tensorrt_rtx", "tensorrt_rtx_bindings")  # the package, or its bindings alone
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
# What NVIDIA's tools print on a machine that denies access to the device.
REFUSAL = r"Device not supported|Failed to initialize the profiler|ERR_NVGPUCTRPERM"


@dataclass(frozen=True)
class Options:
    """build         where everything is compiled and unpacked
    rows          the file that timings go to, a line each
    architecture  compute capability to build for; None where there is no GPU
    gpu           whether there is one
    wheels        what prepare.sh collected, if anything
    tensorrt      folder of TensorRT's headers, where they are not found by themselves
    bundles       by what they are: "bundle", "latent", "trained" and INTEGERS, where they may lie
    rehearse      without a GPU the parts of the runtime run on the CPU, to see that they run
    """

    build: Path
    rows: Path
    architecture: str | None
    gpu: bool
    wheels: Path | None
    tensorrt: Path | None
    bundles: Mapping[str, Path]
    jobs: int
    quick: bool
    ready: bool = False  # everything is compiled
    rehearse: bool = False


def steps(options: Options) -> list[Step]:
    test = options.build / KERNELS / "tests" / "h2o_cuda_test"
    library = options.build / KERNELS / "libh2o_cuda.so"
    random_model = (REPO / "examples" / "tiny-llama", options.build / "model")

    def step(name: str, command: Callable[[], list[str]], limit: float, *after: str) -> Step:
        building = name.startswith(("configure", "build"))

        def checked() -> list[str]:
            if not (options.gpu or (building and options.architecture)):
                raise NotRun("no GPU")
            return command()

        return Step(name, checked, limit, after)

    def target(*names: str) -> list[str]:
        return ["cmake", "--build", str(options.build), "--parallel", str(options.jobs), "--target", *names]

    script = partial(script_of, options)

    def end_to_end(backend: str, kind: str = "bundle") -> list[str]:
        return script("end_to_end", bundle(options, kind), "--backend", backend)

    def sanitized(tool: str) -> Step:
        command = partial(sanitizer, tool, str(test), "--small")
        return replace(step(f"sanitizer, {tool}", command, 180, "build kernels"), refusal=REFUSAL)

    def profiled() -> list[str]:
        return [*profiler(), *script("timings", library, "every kernel", options.rows)]

    plan = [
        step("configure", lambda: configure(options), 120),
        step("build kernels", lambda: target("h2o_cuda", "h2o_cuda_test"), 300, "configure"),
        step("tests, small", lambda: [str(test), "--small"], 60, "build kernels"),
        step("unpack wheels", lambda: unpack(options), 60),
        step("build modules", lambda: target(*modules()), 300, "configure"),
        *runtime_steps(options),
        step("model", partial(script, "model_times", *random_model, options.rows), 240, "build modules"),
    ]
    for table in TABLES:
        timings = partial(script, "timings", library, table, options.rows)
        plan.append(step(f"timings, {table}", timings, 90, "build kernels"))
    plan += [
        step("policies", lambda: script("policies", options.rows), 120, "build modules"),
        step("end to end, latents", partial(end_to_end, "onnxruntime", "latent"), 180, "build modules"),
        step("timings, prefill", lambda: script("prefill_times", options.rows), 120, "build modules"),
        sanitized("memcheck"),
        step("build plugins", lambda: target(*plugins(options)), 120, "configure"),
        step("conformance", lambda: conformance(options), 60, "build plugins"),
    ]
    plan.append(replace(step("profile", profiled, 120, "build kernels"), refusal=REFUSAL))
    if not options.quick:
        plan.append(step("tests, full", lambda: [str(test)], 180, "tests, small"))
        plan += [sanitized(tool) for tool in SANITIZERS]
    for backend in BACKENDS:
        plan.append(step(f"end to end, {backend}", partial(end_to_end, backend), 180, "build modules"))
    compiled = ("configure", "build") if options.ready else ()
    return [one for one in plan if not one.name.startswith(compiled)]


def script_of(options: Options, name: str, *arguments: object) -> list[str]:
    launch = [sys.executable, "-m", "bench.gpu_check.launch", str(options.build)]
    return [*launch, f"bench.gpu_check.{name}", *map(str, arguments)]


def runtime_steps(options: Options) -> Iterator[Step]:
    """Parts of the runtime on ONNX Runtime, each against the CPU; in a rehearsal on the CPU themselves."""
    device = ("--device", "cpu" if options.rehearse else "cuda")
    script = partial(script_of, options)

    def part(name: str, kind: str) -> list[str]:
        return script("parts", name, bundle(options, kind), options.rows, *device)

    def rows(kind: str) -> list[str]:
        return script("model_rows", bundle(options, kind), options.rows, *device)

    def engines() -> list[str]:
        if not any(map(has, RTX)):
            raise NotRun("TensorRT for RTX is not installed")
        target = f"tensorrt-rtx sm={options.architecture or 120}"
        return script("command", "build", bundle(options, "bundle"), "--target", target, "--force")

    commands: dict[str, Callable[[], list[str]]] = {
        "plain": lambda: part("plain", "bundle"),
        "int8": lambda: part("plain", "int8"),
        "int4": lambda: part("plain", "int4"),
        "int8 in steps of several rows": lambda: rows("half-int8"),
        "int4 in steps of several rows": lambda: rows("half-int4"),
        "latents": lambda: part("plain", "latent"),
        "offload": lambda: part("offload", "bundle"),
        "quest": lambda: part("quest", "bundle"),
        "lookup": lambda: part("lookup", "bundle"),
        "four requests": lambda: script(
            "four_requests", options.build, bundle(options, "bundle"), options.rows, *device
        ),
        "trained": lambda: part("perplexity", "trained"),
        "compare": lambda: script("command", "compare", bundle(options, "bundle"), *device, "-n", 300),
        "engines for RTX": engines,
    }

    def checked(command: Callable[[], list[str]]) -> list[str]:
        if not (options.gpu or options.rehearse):
            raise NotRun("no GPU")
        return command()

    after = () if options.rehearse else ("build modules",)
    for name, command in commands.items():
        yield Step(f"runtime, {name}", partial(checked, command), 60, after, UNKNOWN_GPU)


def configure(options: Options) -> list[str]:
    """Everything that this machine can build; if CMake cannot configure that, the kernels alone."""
    if shutil.which("cmake") is None:
        raise NotRun("cmake is not installed")
    architecture = f"{options.architecture}-real"  # no PTX: the build runs on this GPU only
    defines = [f"-DH2O_CUDA_ARCHITECTURES={architecture}", "-DH2O_CUDA=ON", "-DH2O_CUDA_TESTS=ON"]
    python = "OFF" if lacking_for_modules() else "ON"
    defines += [f"-DH2O_PYTHON={python}", f"-DPython_EXECUTABLE={sys.executable}"]
    defines += ["-DH2O_TENSORRT=ON", "-DCMAKE_BUILD_TYPE=Release"]
    defines.append("-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON")  # --ready may find the build in another folder
    headers = options.tensorrt or (options.wheels / "tensorrt" if options.wheels else None)
    if headers and headers.is_dir():
        defines.append(f"-DTensorRT_ROOT={headers}")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    command = ["cmake", "-S", str(REPO), "-B", str(options.build), *generator, *defines]
    kernels_alone = '"$@" || "$@" -DH2O_PYTHON=OFF -DH2O_TENSORRT=OFF'
    return ["sh", "-c", kernels_alone, "configure", *command]


def has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def lacking_for_modules() -> str | None:
    """Why this machine cannot build the native modules; empty if it can."""
    if not has("nanobind"):
        return "nanobind is not installed"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers are not installed"
    return None


def modules() -> list[str]:
    if lacking := lacking_for_modules():
        raise NotRun(lacking)
    return ["_cuda", "_cpu", "h2o_onnxruntime", "h2o_onnxruntime_cuda"]


def plugins(options: Options) -> list[str]:
    # CMake's cache says whether it found TensorRT's headers.
    cache = (options.build / "CMakeCache.txt").read_text()
    if "TensorRT_INCLUDE_DIR:PATH=" not in cache or "TensorRT_INCLUDE_DIR-NOTFOUND" in cache:
        raise NotRun("TensorRT's headers were not found")
    return ["h2o_trt_plugins", "h2o_trt_conformance"]


def conformance(options: Options) -> list[str]:
    folder = options.build / "plugins" / "tensorrt"
    return [str(folder / "h2o_trt_conformance"), str(folder / "libh2o_trt_plugins.so")]


def sanitizer(tool: str, *command: str) -> list[str]:
    program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if program is None:
        raise NotRun("compute-sanitizer is not installed")
    # Some tests make a call that has to fail. They look at its status.
    calls = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return [program, "--tool", tool, *calls, "--error-exitcode", "9", *command]


def profiler() -> list[str]:
    """Of each kernel the first launch. Clocks stay as they are: a process may not be allowed to set them."""
    program = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if program is None:
        raise NotRun("ncu is not installed")
    sections = [word for name in SECTIONS for word in ("--section", name)]
    # No colon in the pattern: it separates the parts, context:stream:kernel:launch.
    ours = ["--kernel-name-base", "demangled", "--kernel-id", "::regex:h2o..cuda:1"]
    return [program, "--clock-control", "none", *sections, *ours]


def unpack(options: Options) -> list[str]:
    """With given wheels, pip needs no index, and installs no dependencies."""
    if options.wheels is None:
        raise NotRun("no --wheels were given")
    wheels = sorted(map(str, options.wheels.glob("*.whl")))
    if not wheels:
        raise NotRun(f"there are no wheels in {options.wheels}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    return [
        *pip,
        "--no-deps",
        "--no-compile",
        "--upgrade",
        "--target",
        str(options.build / "wheels"),
        *wheels,
    ]


def bundle(options: Options, kind: str) -> Path:
    found = [options.bundles[kind], *([options.wheels / kind] if options.wheels else [])]
    for folder in found:
        if (folder / "manifest.json").is_file():
            return folder
    raise NotRun(f"there is no bundle in {' or '.join(map(str, found))}: prepare.sh makes one")
