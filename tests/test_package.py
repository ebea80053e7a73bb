"""What the package says of itself: one version, types, and files of a public forge that name things that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no parser of its own, pytest brings one
    import tomli as tomllib

from tools import constraints, requirements

from h2o_cli.extras import CPU_TORCH

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
NAME = re.compile(r"[\w-]+")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    assert versions[0] in (PROJECT["version"], "Unreleased")
    assert PROJECT["version"] in versions
    kinds = set(re.findall(r"^### (.+)$", changelog, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_wheels_in_the_docs_have_this_version() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for version in re.findall(r"h2o_edge-(\d[\d.]*\d)", page.read_text(encoding="utf-8")):
            assert version == PROJECT["version"], page.name


def test_every_package_has_types() -> None:
    for folder in PYPROJECT["tool"]["scikit-build"]["wheel"]["packages"].values():
        assert (ROOT / folder / "py.typed").exists(), folder


def test_production_has_no_more_lines_than_its_budget() -> None:
    folders = ["cli", "export", "plugins", "runtime", "server", "bench", "tools"]
    endings = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".js", ".css", ".html"}
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no repository here")
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in endings]
    lines = sum(path.read_bytes().count(b"\n") for path in files if path.exists())
    assert lines <= PYPROJECT["tool"]["h2o-edge"]["most-lines"]


def test_constraints_name_what_the_targets_install() -> None:
    lines = constraints.CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    named = {line.partition("==")[0] for line in lines if not line.startswith("#")}
    wanted = requirements.requirements(PROJECT, ["cpu", "export", "serve", "bench", "dev"])
    for requirement in (*wanted, *PYPROJECT["build-system"]["requires"], "ninja"):
        name = NAME.match(requirement)
        assert name is not None
        assert name[0].lower() in named, requirement


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda one: one.name)
def test_workflows_run_what_exists(workflow: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps(workflow):
        assert ("run" in step) != ("uses" in step)
        for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for script in re.findall(r"\btools/\S+", step.get("run", "")):
            assert (ROOT / script).exists(), script


@pytest.mark.parametrize("path", sorted((ROOT / "docker").iterdir()), ids=lambda one: one.name)
def test_images_install_extras_and_start_commands_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for extras in re.findall(r"\[([a-z,]+)\]\"", text):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    (start,) = re.findall(r'^ENTRYPOINT \["([\w-]+)"', text, re.MULTILINE)
    assert start in PROJECT["scripts"]
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE):
        assert (ROOT / source).exists(), source


def test_one_index_of_torch_is_named_wherever_export_is_installed() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    told = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    for line in (line for line in told if re.match(r"    pip install .*\[[\w,]*export", line)):
        assert f" -c constraints.txt --extra-index-url {CPU_TORCH} " in line, line


@pytest.mark.parametrize(
    ("setting", "asked"), [("PIP_EXTRA_INDEX_URL=", True), ("PIP_FIND_LINKS=/wheels", False)]
)
def test_make_takes_torch_for_cpus_where_pip_has_no_other_place(setting: str, asked: bool) -> None:
    name, _, value = setting.partition("=")
    kept = {known: text for known, text in os.environ.items() if not known.startswith(("PIP_", "MAKE"))}
    done = subprocess.run(
        ["make", "--dry-run", "--what-if=pyproject.toml", ".venv/packages"],
        cwd=ROOT,
        env=kept | {"PIP_CONFIG_FILE": os.devnull, name: value},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if " --requirement " in line)
    assert (f" --extra-index-url {CPU_TORCH} " in line) is asked
