"""Every command in the documentation exists, every flag is real, links lead somewhere, and sentences are short.

Commands are taken from the code blocks and the inline code of README.md, CONTRIBUTING.md and docs/*.md. Our own
commands are parsed by click exactly as a terminal would have them; other people's programs must be on the list
below.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from tools import prose

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no parser of its own, pytest brings one
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS: dict[str, str] = PROJECT["scripts"]

# Programs that are not ours: their flags that we use, each looked up in its manual.
OTHERS: dict[str, set[str]] = {
    "apt": set(),
    "cat": set(),
    "claude": {"--bare", "--tools"},
    "cp": {"-r"},
    "docker": {"-f", "-t", "--stop-timeout"},
    "ctest": {"--test-dir", "--output-on-failure"},
    "curl": {"-H", "-d", "--retry", "--retry-delay", "--retry-all-errors"},
    "export": set(),
    "install": {"-m", "-o"},
    "jetson_clocks": set(),
    "nvcc": {"--version"},
    "nvpmodel": {"-m"},
    "pytest": {"--mixes", "--requests", "--schemas"},
    "rsync": {"-a"},
    "systemctl": {"--now"},
    "tegrastats": {"--interval"},
    "trtexec": {"--dynamicPlugins", "--onnx"},
    "useradd": {"--create-home", "--home-dir", "--system"},
    ".": set(),
}
CMAKE_FLAGS = {"-S", "-B", "-G", "--build", "--preset", "--toolchain", "-j", "-D"}
CMAKE_VARIABLES = {"CMAKE_BUILD_TYPE", "CMAKE_CUDA_COMPILER", "TensorRT_ROOT"}
PIP_FLAGS = {
    "-C",
    "-c",
    "-e",
    "--extra-index-url",
    "--no-build-isolation",
    "--no-deps",
    "--target",
    "--upgrade",
}
PYTHON = {"python", "python3"}
ASSIGNMENT = re.compile(r"[A-Z_]\w*=")
KNOWN = {*SCRIPTS, *OTHERS, *PYTHON, "cmake", "make", "openssl", "pip"}


@dataclass(frozen=True)
class Command:
    page: str
    words: tuple[str, ...]
    inline: bool  # inside a sentence, where arguments may be left out

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


@dataclass(frozen=True)
class Page:
    """`blocks` are the lines of each block of commands, `inline` the code inside sentences and tables."""

    name: str
    blocks: tuple[tuple[str, ...], ...]
    inline: tuple[str, ...]


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:\A|\n\n)((?:    [^\n]*(?:\n|\Z))+)")


def read(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    blocks = [block for language, block in FENCED.findall(text) if language in ("", "sh", "bash")]
    text = FENCED.sub("", text)
    blocks += INDENTED.findall(text)
    text = INDENTED.sub("", text)
    inline = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
    lines = (tuple(block.replace("\\\n", " ").splitlines()) for block in blocks)
    # A block without any program in it shows data.
    shown = (block for block in lines if any(starts_a_program(line) for line in block))
    return Page(str(path.relative_to(ROOT)), tuple(shown), tuple(inline))


def program(words: list[str]) -> str:
    """The program that a command starts, without its folder."""
    return words[0] if words[0] == "." else words[0].rsplit("/", 1)[-1]


def starts_a_program(line: str) -> bool:
    """Whether a line of a code block is a command, of those that are known here."""
    return any(program(words) in KNOWN for words in simple_commands(line))


def commands(page: Page) -> Iterator[Command]:
    for code, inline in itertools.chain(
        ((line, False) for block in page.blocks for line in block), ((line, True) for line in page.inline)
    ):
        for words in simple_commands(code):
            name = program(words)
            if name in KNOWN and (not inline or len(words) > 1 or name in SCRIPTS):
                yield Command(page.name, (name, *words[1:]), inline)


def simple_commands(line: str) -> Iterator[list[str]]:
    """A line of shell, without its comment, cut at && and |, each part without sudo and variables before it."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # an apostrophe in a table's cell
    for separator, part in itertools.groupby(words, key=lambda word: word in ("&&", "|")):
        if not separator:
            words = list(itertools.dropwhile(lambda word: word == "sudo" or ASSIGNMENT.match(word), part))
            if words:
                yield words


def service(path: Path) -> Page:
    """What a systemd unit starts."""
    starts = re.findall(r"^ExecStart=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return Page(path.name, (tuple(starts),), ())


PAGES = [read(path) for path in prose.pages()]
PAGES += [service(path) for path in sorted((ROOT / "docs").glob("*.service"))]
ALL = sorted({str(command): command for page in PAGES for command in commands(page)}.items())


def of(*programs: str) -> Any:
    chosen = [pytest.param(command, id=name) for name, command in ALL if command.words[0] in programs]
    return pytest.mark.parametrize("command", chosen)


# Our own commands


@of(*SCRIPTS)
def test_our_commands_take_these_arguments(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    name, *arguments = command.words
    context, parsed = entry(name), arguments
    if not arguments:
        return  # the prose names a command, and it exists
    while isinstance(context, click.Group):
        if parsed[0].startswith("-"):
            break
        _, command_meant, parsed = context.resolve_command(click.Context(context), parsed)
        assert command_meant is not None
        context = command_meant
    for parameter in context.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)  # keys.txt is the reader's own file
    try:
        context.make_context(name, list(parsed))
    except click.exceptions.Exit:
        pass  # --help
    except click.UsageError as error:  # a sentence may name `h2o-export --dry-run`
        if not (command.inline and isinstance(error.__cause__, click.MissingParameter)):
            raise


def entry(script: str) -> click.Command:
    """The click command behind a console script; skipped where an extra that it needs is not installed."""
    module, _, attribute = SCRIPTS[script].partition(":")
    start = getattr(importlib.import_module(module), attribute)
    try:
        found = importlib.import_module(start.args[0]).main
    except ImportError as error:
        pytest.skip(f"{script} cannot be imported here: {error}")
    assert isinstance(found, click.Command)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_of_ours_is_documented(script: str) -> None:
    assert any(command.words[0] == script for _, command in ALL), f"no page shows {script}"


def test_flags_in_prose_are_real() -> None:
    """`--sink 4` in a sentence belongs to some command of ours, or to venv."""
    real = {flag for script in SCRIPTS for flag in flags_of(entry(script))}
    real |= {flag for flags in OTHERS.values() for flag in flags} | CMAKE_FLAGS | PIP_FLAGS | {"--help"}
    real |= {"--system-site-packages"}
    for page in PAGES:
        for inline in page.inline:
            flag = inline.split()[0].partition("=")[0]
            if re.fullmatch(r"--?[a-zA-Z][\w-]*", flag) and not flag.startswith("-D"):
                assert flag in real, f"{page.name}: {inline}"


def flags_of(command: click.Command) -> set[str]:
    found = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(command, click.Group):
        found |= {flag for child in command.commands.values() for flag in flags_of(child)}
    return found


@pytest.mark.parametrize("command", [pytest.param(command, id=name) for name, command in ALL])
def test_files_of_the_repository_exist(command: Command) -> None:
    for word in command.words[1:]:
        if word.partition("/")[0] in {"cmake", "docs", "examples", "plugins", "tests"}:
            assert (ROOT / word).exists(), word


# Building


@of("cmake")
def test_cmake_finds_what_it_is_told(command: Command) -> None:
    words = list(command.words[1:])
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    kind = "buildPresets" if "--build" in words else "configurePresets"
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("-"):
            assert word in CMAKE_FLAGS or word[:2] == "-D", word
        if word.startswith("-D"):
            variable = word[2:].partition("=")[0]
            assert variable in CMAKE_VARIABLES or variable in options(), f"no CMakeLists.txt has {variable}"
        if word == "-S":
            assert (ROOT / after / "CMakeLists.txt").is_file(), after
        if word == "--preset":
            visible = {preset["name"] for preset in presets[kind] if not preset.get("hidden")}
            assert after in visible, f"{after} is none of {visible}"
        if word == "--toolchain":
            assert (ROOT / after).is_file(), after


@cache
def options() -> frozenset[str]:
    """Options and cache variables of our CMake files."""
    files = [
        ROOT / "CMakeLists.txt",
        *ROOT.glob("plugins/**/CMakeLists.txt"),
        *ROOT.glob("tests/**/CMakeLists.txt"),
    ]
    declared = re.compile(r"(?:option\(|set\((?=\w+ [^)]*CACHE))(H2O_\w+)")
    return frozenset(name for file in files for name in declared.findall(file.read_text()))


@of("make")
def test_make_has_these_targets(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (word for word in command.words[1:] if "=" not in word and not word.startswith("#")):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), target


@of("pip")
def test_pip_installs_extras_that_exist(command: Command) -> None:
    words = command.words[1:]
    assert words[0] == "install"
    for flag in (word for word in words if word.startswith("-")):
        assert flag in PIP_FLAGS, flag
    for extras in re.findall(r"(?:\.|h2o-edge)\[([\w,-]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), extras
    for variable in re.findall(r"cmake\.define\.(\w+)=", " ".join(words)):
        assert variable in options(), variable


# Scripts and other programs


@of(*PYTHON)
def test_scripts_exist_and_know_their_flags(command: Command) -> None:
    first, *rest = command.words[1:]
    if first == "-c":
        compile(rest[0], "documentation", "exec")
        return
    if first == "-m" and rest[0].startswith("h2o_"):
        importlib.import_module(rest[0]).main.make_context(rest[0], rest[1:])
        return
    if first == "-m" and rest[0] == "venv":
        assert {word for word in rest if word.startswith("-")} <= {"--system-site-packages"}
        return
    if first == "-m":
        first = rest.pop(0).replace(".", "/") + ".py"
    assert (ROOT / first).is_file(), first
    for flag in (word for word in rest if word.startswith("-")):
        assert flag in script_flags(first), f"{first} has no {flag}"


def script_flags(script: str) -> set[str]:
    """String literals that look like flags in a script and the modules beside it."""
    folder = (ROOT / script).parent
    trees = [ast.parse(file.read_text()) for file in {ROOT / script, *folder.glob("*.py")}]
    nodes = itertools.chain.from_iterable(map(ast.walk, trees))
    strings = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and re.fullmatch(r"--?[a-z][\w-]*", text)}


@of(*OTHERS)
def test_other_programs_take_the_flags_that_we_looked_up(command: Command) -> None:
    program, *words = command.words
    for word in words:
        if word.startswith("-"):
            assert word.partition("=")[0] in OTHERS[program], f"{program} {word}"


def test_a_line_of_commands_starts_with_a_program_that_is_known() -> None:
    """A new program has to be looked up and listed above."""
    for page in PAGES:
        for line in itertools.chain.from_iterable(page.blocks):
            for words in simple_commands(line):
                assert program(words) in KNOWN, f"{page.name}: {line}"


# Links and words


def test_python_in_the_docs_runs(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").symlink_to(tiny_bundle)
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    (code,) = (block for language, block in FENCED.findall(page) if language == "python")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
