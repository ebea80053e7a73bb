"""How long the sentences of the documentation are.

    python -m tools.prose                    # README.md, CONTRIBUTING.md and docs/*.md
    python -m tools.prose --longest 3 FILE   # with the three longest sentences of each file
    python -m tools.prose --check            # fails for a page whose sentences have more than 20 words on average

Code, tables, headings, pictures and numbers are left out; a piece of inline code counts as one word. A paragraph
and an item of a list each end a sentence.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 20  # of a sentence, the mean of a page

_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:\A|\n\n)(?:    [^\n]*(?:\n|\Z))+")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_TAG = re.compile(r"<[^>\n]+>")
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_INLINE_CODE = re.compile(r"`[^`]+`")
_NOT_PROSE = re.compile(r"^\s*(?:\||#|```).*$", re.MULTILINE)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[)\"']*\s+")
_WORD = re.compile(r"[^\W\d_][\w'’-]*")


@dataclass(frozen=True)
class Prose:
    """The sentences of one page, and counts of them."""

    lines: int
    sentences: tuple[str, ...]

    @property
    def words(self) -> int:
        return sum(map(count_words, self.sentences))

    @property
    def mean(self) -> float:
        """Words a sentence."""
        return self.words / max(1, len(self.sentences))


def count_words(sentence: str) -> int:
    return len(_WORD.findall(sentence))


def read(path: Path) -> Prose:
    text = path.read_text(encoding="utf-8")
    return Prose(len(text.splitlines()), tuple(sentences(text)))


def sentences(text: str) -> Iterator[str]:
    """The sentences of Markdown text, each on one line; those without a word are left out."""
    for left_out in (_FENCED, _INDENTED, _COMMENT, _PICTURE, _TAG, _NOT_PROSE):
        text = left_out.sub("\n", text)
    text = _INLINE_CODE.sub("Code", text)
    text = _LINK.sub(r"\1", text)
    text = _ITEM.sub("\n\n", text).replace("**", "")
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _END.split(" ".join(paragraph.split())):
            if count_words(sentence):
                yield sentence


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="pages to read (default: all)")
    parser.add_argument(
        "--longest", type=int, default=0, help="show so many of each page's longest sentences"
    )
    parser.add_argument("--check", action="store_true", help=f"fail beyond {MOST_WORDS} words a sentence")
    chosen = parser.parse_args()
    print(f"{'page':26} {'lines':>6} {'words':>7} {'sentences':>10} {'words a sentence':>17}")
    found = {path: read(path) for path in chosen.files or pages()}
    for path, prose in found.items():
        print(row(path.name, prose))
        for sentence in sorted(prose.sentences, key=count_words, reverse=True)[: chosen.longest]:
            print(f"    {count_words(sentence)}: {sentence}")
    every = tuple(sentence for prose in found.values() for sentence in prose.sentences)
    print(row("all", Prose(sum(prose.lines for prose in found.values()), every)))
    if chosen.check and (long := [path.name for path, prose in found.items() if prose.mean > MOST_WORDS]):
        sys.exit(f"sentences of more than {MOST_WORDS} words on average: {', '.join(long)}")


def row(name: str, prose: Prose) -> str:
    return f"{name:26} {prose.lines:6} {prose.words:7} {len(prose.sentences):10} {prose.mean:17.1f}"


if __name__ == "__main__":
    main()
