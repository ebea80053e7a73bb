"""Every page: its links, and what it lists."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tools import prose, supported

from tests.test_docs import FENCED, ROOT

WRITTEN = [*prose.pages(), *sorted((ROOT / "bench").rglob("*.md")), *sorted((ROOT / "tests").rglob("*.md"))]
# Files of bundles, checkpoints, packages and other programs, which pages name.
THEIRS = {
    *("tokenizer.json", "config.json", "modules.json", "streaming.py", "check.py", "keys.txt"),
    "h2o/operators.h",  # written by the build
}
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links: lower case, hyphens for spaces, no other punctuation."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in (found[1] or found[2] for found in LINK.finditer(text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", WRITTEN, ids=relative)
def test_no_page_names_a_folder_of_somebodys_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|root|work|Users)/\S*", page.read_text(encoding="utf-8"))


FILE = r"`([\w./-]*\w\.(?:py|pyi|cpp|h|cu|cuh|sh|md|csv|json|toml|txt|service))`"
EARLIER = re.compile(FILE + r"\s+(?:at|of\s+commit)\s+([0-9a-f]{8})")  # a script that left


def git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


@cache
def tracked() -> tuple[str, ...]:
    return tuple(f"/{name}" for name in (git("ls-files") or "").splitlines())


@pytest.mark.parametrize("page", prose.pages(), ids=relative)
def test_files_in_prose_exist(page: Path) -> None:
    """By their path, or the end of it, below the repository; files of the reader's stand in commands alone."""
    text = page.read_text(encoding="utf-8")
    for name, commit in EARLIER.findall(text):
        if git("cat-file", "-e", commit) is not None:  # a clone may be shallow
            assert git("cat-file", "-e", f"{commit}:{name}") is not None, f"{name} of {commit}"
    for name in re.findall(FILE, EARLIER.sub("", text)):
        if tracked() and name not in THEIRS:
            assert any(path.endswith(f"/{name}") for path in tracked()), f"{page.name}: {name}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two three. Four\nfive!", ["One two three.", "Four five!"]),
        ("- one `h2o-run x. y`\n- [two](page.md)", ["one Code", "two"]),
        ("# Heading\n\n| a | table |\n\n    h2o-run bundle\n\n```python\ncode\n```\n", []),
        (
            "h2o-run reads 4,096 tokens. llama.cpp does, too.",
            ["h2o-run reads 4,096 tokens.", "llama.cpp does, too."],
        ),
    ],
)
def test_what_counts_as_a_sentence(text: str, expected: list[str]) -> None:
    assert list(prose.sentences(text)) == expected


def test_numbers_are_no_words() -> None:
    assert prose.count_words("At 4,096 tokens it takes 2.65 s") == 5


def test_the_readme_lists_what_the_registries_have() -> None:
    """`python -m tools.supported` puts it there."""
    assert supported.table() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_on_export_names_every_model_type() -> None:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    for model_type in supported.FAMILIES:
        assert f"`{model_type}`" in page, model_type


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name}" in index, page.name


def test_the_terms_of_the_glossary_are_used() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    glossary, _, rest = text.partition("## The path of a prompt")
    terms = [
        term for row in re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE) for term in row.split(", ")
    ]
    written = (
        rest + "".join(page.read_text(encoding="utf-8") for page in WRITTEN if page.name != "architecture.md")
    ).lower()
    for term in terms[1:]:
        assert term.strip("- ").lower() in written, term
