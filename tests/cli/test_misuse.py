"""Every way to misuse h2o-compare and h2o-run that we know of. What h2o-run does with its own flags is in
test_run.py, how h2o-export is misused in test_misuse_export.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import bundles
from tests.cli.conftest import Run
from tests.cli.misuse import LONG, NAME, Misuse, Place, assert_one_sentence, run_apart

pytestmark = pytest.mark.timeout(600)

# Of sound folders: the arguments, the exit code, and the message.
COMPARE_ARGUMENTS: dict[str, tuple[tuple[Any, ...], int, str]] = {
    "no such folder": (("{folder}/nowhere",), 1, "{folder}/nowhere: no such folder"),
    "a checkpoint that is none": (
        ("{bundle}", "--stage", "pipeline", "--checkpoint", "{folder}/nowhere"),
        1,
        "{folder}/nowhere: no such file or folder",
    ),
    "no such text": (("{bundle}", "--prompt-file", "{folder}/text"), 1, "{folder}/text: no such file"),
    "one token": (("{bundle}", "-n", 1), 2, "1 is not in the range 2<=x<=32768"),
}

COMPARE: dict[str, Misuse] = {
    **{name: (lambda p: p, *rest) for name, rest in COMPARE_ARGUMENTS.items()},
    "half of some weights": (
        lambda p: p.truncate("bundle/onnx/weights/dense_01.bin"),
        ("{bundle}",),
        1,
        "{bundle}/onnx/weights/dense_01.bin: has",
    ),
    "an empty text": (
        lambda p: p.write("text", ""),
        ("{bundle}", "--prompt-file", "{folder}/text"),
        1,
        "{folder}/text: its text has fewer than 2 tokens",
    ),
    "bytes as text": (
        lambda p: p.write("text", b"Gr\xfc\xdfe"),
        ("{bundle}", "--prompt-file", "{folder}/text"),
        1,
        "{folder}/text is not valid UTF-8: byte 0xfc at offset 2",
    ),
}

# Of bundles that h2o-run is to open: the change to it, and the message.
BUNDLES: dict[str, tuple[Callable[[Place], object], str]] = {
    "a manifest that is a folder": (
        lambda p: (p.remove("bundle/manifest.json"), (p.bundle / "manifest.json").mkdir()),
        "{bundle}/manifest.json: cannot be read as JSON",
    ),
    "a tokenizer's configuration of brackets": (
        lambda p: p.write("bundle/tokenizer_config.json", "[" * 100_000).resize("tokenizer_config.json"),
        "{bundle}/tokenizer_config.json is not valid JSON",
    ),
    "a thousand million layers": (
        lambda p: p.manifest(lambda m: m["model"].update(layers=10**9)),
        "{bundle}/manifest.json: model.layers: Input should be less than or equal to 1024",
    ),
    "no graphs": (
        lambda p: p.manifest(lambda m: m.update(graphs=[])),
        "{bundle}/manifest.json: lists 0 dense graphs",
    ),
}

RUN: dict[str, Misuse] = {
    **{name: (spoil, ("{bundle}", "-p", "a"), 1, told) for name, (spoil, told) in BUNDLES.items()},
    "a name too long": (lambda p: p, (LONG, "-p", "a"), 1, "File name too long"),
    "more threads than any machine runs": (
        lambda p: p,
        ("{bundle}", "-p", "a", "--threads", 3000),
        2,
        "threads must be at most",
    ),
}

ALL = [(command, case) for command, cases in (("compare", COMPARE), ("run", RUN)) for case in cases]


@pytest.mark.parametrize(("command", "case"), ALL, ids=[f"{command}: {case}" for command, case in ALL])
def test_one_sentence_names_the_culprit_and_nothing_is_left(
    command: str, case: str, h2o: Run, shared_folder: Path, tmp_path: Path
) -> None:
    misuse = {"compare": COMPARE, "run": RUN}[command][case]
    place = Place(tmp_path, *bundles.named(shared_folder, NAME))
    assert_one_sentence(misuse, place, lambda words: run_apart(h2o, command, words))
