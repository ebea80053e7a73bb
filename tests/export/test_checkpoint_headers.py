"""Whatever tensor is missing or misshapen, the files' headers tell before the first graph is made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests import family_models

from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_export.validation.soundness import check_checkpoint
from h2o_runtime.errors import CheckpointError

# Fused, stacked, plain, stacked in the other order, and with tables of all layers.
ARRANGED = (
    *("glm4", "gpt_oss"),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("smollm3", "qwen3_next", "gemma4")),
)


def first_and_last(names: Iterable[str]) -> set[str]:
    """Of the tensors whose names differ in the numbers of layers and experts alone."""
    ordered = sorted(names, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    first, last = ({re.sub(r"\d+", "n", name): name for name in each} for each in (ordered[::-1], ordered))
    return {*first.values(), *last.values()}


@pytest.mark.parametrize("name", ARRANGED)
def test_every_tensor_is_checked(tmp_path: Path, name: str) -> None:
    folder = family_models.save(tmp_path, name)
    stored = load_file(folder / "model.safetensors")
    needed = checkpoint_tensors(open_checkpoint(str(folder)).plan)
    for own in sorted(first_and_last(stored)):
        tensor = stored[own]
        missing = {other: value for other, value in stored.items() if other != own}
        for damaged in (missing, {**stored, own: tensor.new_zeros(len(tensor) + 1, *tensor.shape[1:])}):
            save_file(damaged, folder / "model.safetensors")
            with pytest.raises(CheckpointError, match=r"no tensor|has shape"):
                open_checkpoint(str(folder)).check(needed)


def test_it_is_checked_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = family_models.save(tmp_path, "granite")
    checkpoint = open_checkpoint(str(folder))

    def read(*_: object) -> None:
        raise AssertionError("a tensor is read")

    monkeypatch.setattr(type(checkpoint), "tensor", read)
    check_checkpoint(checkpoint)
    larger = replace(
        checkpoint, config=replace(checkpoint.config, vocab_size=checkpoint.config.vocab_size + 1)
    )
    with pytest.raises(CheckpointError, match=r"has shape \[512, 64\], but config.json implies \[513, 64\]"):
        check_checkpoint(larger)


def test_what_dynamic_rotation_does_not_do_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_checkpoint(str(family_models.save(tmp_path, "granite")))
    dynamic = tuple(replace(rope, kind="dynamic") for rope in checkpoint.config.ropes)
    check_checkpoint(replace(checkpoint, config=replace(checkpoint.config, ropes=dynamic)))
    assert "RoPE scaling 'dynamic' begins beyond 4,096 positions" in caplog.text
