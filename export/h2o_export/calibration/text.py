"""The calibration text: the user's, or Python's manual, which comes with Python."""

from __future__ import annotations

import tempfile
from pathlib import Path

from h2o_export.checkpoints import Checkpoint
from h2o_runtime.errors import InputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.text import Tokenizer, decode_utf8

LENGTH = 1024  # tokens of a text that are read together
CHARACTERS = 12  # of a token, on average, at most


def calibration_texts(checkpoint: Checkpoint, file: Path | None, count: int) -> list[list[int]]:
    """Up to `count` parts from all over one text, the same number of token ids each. Raises InputError."""
    length = min(LENGTH, checkpoint.config.max_position_embeddings)
    content = _manual() if file is None else decode_utf8(read_input(file), str(file))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write_tokenizer(Path(folder))
        tokenizer = Tokenizer.load(folder)
        part = CHARACTERS * length
        if len(content) > count * part:
            starts = [len(content) * index // count for index in range(count)]
            segments = [tokenizer.encode(content[start : start + part]) for start in starts]
        else:
            segments = _parts(tokenizer.encode(content), length, count)
    length = min(length, *map(len, segments))
    found = [[token % checkpoint.config.vocab_size for token in ids[:length]] for ids in segments if length]
    if not found:
        raise InputError(f"{file}: holds no text to calibrate with")
    return found  # ids beyond a (test) vocabulary wrap around


def _manual() -> str:
    from pydoc_data.topics import topics

    return "\n".join(str(topic) for topic in topics.values())


def _parts(ids: list[int], length: int, count: int) -> list[list[int]]:
    count = min(count, max(1, len(ids) // length))
    starts = [len(ids) * index // count for index in range(count)]
    return [ids[start : start + length] for start in starts]
