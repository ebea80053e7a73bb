"""Random mixes of requests in every kind of cache: each answer is that of an isolated run, token for token.

`pytest tests/server/test_mixes.py --mixes 200` runs more of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.mixes import Isolated, Lengths, run_mix
from tests.server.scheduled import SLOTS, load, pages_in_use

from h2o_runtime.caches import Cache, Contiguous, Paged

SHORT = Lengths((1, 20, 60, 150, 260), 12)
LONG = Lengths((20, 150, 260, 390), 60)  # where four slots share the pages of one context
POOL = 1 << 22
KINDS: dict[str, tuple[Cache, Lengths, dict[str, Any]]] = {
    "float32": (Contiguous(), SHORT, {}),
    "pages": (Paged(), SHORT, {"pool": POOL}),
    "few-pages": (Paged(rows="int8"), LONG, {"pool": 1 << 16, "slot_bytes": 1}),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_isolated_runs(
    kind: str, tiny_bundle: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    cache, lengths, options = KINDS[kind]
    folder = tmp_path if kind == "few-pages" else None  # conversations that go on from there later
    together = load(tiny_bundle, SLOTS, cache, dense_form="native", folder=folder, **options)
    with together as model, load(tiny_bundle, 1, cache, dense_form="native") as alone:
        isolated, cancelled = Isolated(alone), 0
        for seed in range(pytestconfig.getoption("--mixes")):
            for task in run_mix(model, seed, lengths):
                isolated.check(task)
                cancelled += task.completion is not None and task.completion.finish_reason == "cancelled"
        assert cancelled
        assert pages_in_use(model) == 0
