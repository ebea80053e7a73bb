"""Compare the processor time of this commit with its parent's, and fail where it has grown by 15 %.

    python -m tools.speed_check [BASE]    # BASE: the commit to compare with; default: the parent

Each commit, this one as it is installed here and its parent in an environment of its own, exports the example
checkpoint, both at once, and then answers a prompt of some 7,000 tokens, in turns. Processor time depends little on
what else the machine does, and the smallest of all rounds least. Without a parent, or where no file that a prompt
passes through has changed, there is nothing to compare.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED_THROUGH = ("plugins", "runtime", "export", "cli/h2o_cli/run", "CMakeLists.txt", "constraints.txt")
EXAMPLE, TEXT = ROOT / "examples" / "tiny-llama", ROOT / "examples" / "tiny-llama" / "heldout.txt"
ROUNDS, ALLOWED = 3, 1.15
CHARACTERS, ANSWER = 28_000, "64"


def main() -> int:
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD^"
    commit = _git("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    if not commit:
        sys.stdout.write(f"no commit {base} here: nothing to compare with\n")
        return 0
    if not _git("diff", "--name-only", commit, "--", *PASSED_THROUGH):
        sys.stdout.write(f"nothing that a prompt passes through has changed since {commit[:8]}\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ratio = compared(Path(folder), commit)
    sys.stdout.write(f"{ratio:.2f} of the processor time of {commit[:8]}; {ALLOWED} is allowed\n")
    return int(ratio > ALLOWED)


def compared(folder: Path, commit: str) -> float:
    """Processor time of the working tree by that of `commit`."""
    source = folder / "source"
    _git("worktree", "add", "--detach", "--force", str(source), commit)
    try:
        with ThreadPoolExecutor() as pool:
            contestants = list(pool.map(prepared, (ROOT, source), (folder / "now", folder / "before")))
        rounds = [[seconds_of_answer(each) for each in contestants] for _ in range(ROUNDS)]
    finally:
        _git("worktree", "remove", "--force", str(source))
    now, before = (min(each) for each in zip(*rounds, strict=True))
    return now / before


def prepared(source: Path, bundle: Path) -> list[str | Path]:
    """Let `source` export the example's checkpoint → its command that answers the prompt."""
    commands = (Path(sys.prefix) if source == ROOT else installed(source)) / "bin"
    _run(commands / "h2o-export", EXAMPLE, "-o", bundle, "--no-validate")
    prompt = bundle.with_suffix(".txt")
    prompt.write_text(TEXT.read_text()[:CHARACTERS])
    return [commands / "h2o-run", bundle, "-f", prompt, "-n", ANSWER]


def installed(source: Path) -> Path:
    """An environment in `source`, for its files as make installs them here."""
    environment = source / ".venv"
    venv.create(environment, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    there = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # A path file brings the packages, and not what other path files do there: the editable install of the project.
    (there / "packages.pth").write_text(str(here))
    # Where it lies relative to the source as it does here, ccache takes a file that has not changed for the same.
    (there / "nanobind").symlink_to(here / "nanobind")
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "--quiet", "install"]
    arguments = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--editable", source]
    subprocess.run([*pip, *arguments], check=True, env={**os.environ, "CCACHE_BASEDIR": str(source)})
    return environment


def seconds_of_answer(command: list[str | Path]) -> float:
    """Seconds of processors, in user mode, that the command h2o-run takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    _run(*command)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
