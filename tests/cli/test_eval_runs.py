"""What a run of h2o-eval keeps in its folder, and what it asks of a model first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import EXAMPLE

from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.folder import ROWS, RUN, TOKENS, RunFolder
from h2o_cli.eval.plan import BEGINNING, Extent, Measurer
from h2o_cli.eval.texts import Document
from h2o_cli.eval.values import COLUMNS
from h2o_runtime import Generator
from h2o_runtime.errors import OutputError
from h2o_runtime.policies.prefill import Full, Query
from h2o_runtime.text import Tokenizer


def measurer_of(generator: Generator, ids: Any, names: str) -> Measurer:
    """Of texts that are `ids`, read under full attention and one rule."""
    found = (
        Contestant("full", Full(), Kind.TRUTH),
        Contestant("local", Query(), Kind.RULE),
    )
    extent = Extent(len(ids), len(ids) // 4, 0, ("perplexity",), (), (), 1, "end", ())
    documents = tuple(Document(name, ids) for name in names)
    return Measurer(generator, Tokenizer.load(EXAMPLE), documents, found, extent, ChatFrame())


def test_the_model_shows_on_a_short_text_whether_it_is_trained(
    tiny_generator: Generator, heldout_ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    each = tiny_generator.each_logits
    monkeypatch.setattr(
        tiny_generator, "each_logits", lambda ids, policy: (read.append(len(ids)), each(ids, policy))[1]
    )
    ids = np.resize(heldout_ids, 2 * BEGINNING)
    assert measurer_of(tiny_generator, ids, "a").sanity().problems == ()
    assert measurer_of(tiny_generator, ids[:96], "a").sanity().problems == ()
    assert read == [BEGINNING, 96]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (ROWS, ",".join(COLUMNS) + "\nj,c,k,s,loss," + "t" * 200_000 + ",1,,1.0\n", "field larger than"),
        (ROWS, ",".join(COLUMNS) + "\nj,c\n", "cut off"),
        (TOKENS, "[]", "holds no object"),
        (TOKENS, '{"seen": [1]}', "does not say which contestant"),
        (RUN, "[]", "holds no object"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / RUN).write_text("{}")
    assert RunFolder.read(tmp_path).values == []
    (tmp_path / name).write_text(content)
    with pytest.raises(OutputError, match=f"its run cannot be read .*{says}"):
        RunFolder.read(tmp_path)
