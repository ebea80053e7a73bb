"""A client that has its answer finds it in /metrics, even while the server still keeps what it read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.running import Server

# The inference thread comes back long after each answer.
LATE = """
import time
from h2o_runtime.sessions.pool import SessionPool
SessionPool.share = lambda self, session: time.sleep(1.5)
"""


@pytest.fixture(scope="module")
def late(tiny_bundle: Path) -> Iterator[Server]:
    with Server(tiny_bundle, "--ctx-size", 512, "--slots", 2, code=LATE) as server:
        yield server


def counted(server: Server) -> dict[str, float]:
    """Requests by their outcomes, and tokens, of one scrape."""
    lines = re.findall(
        r'^(h2o_(?:requests|prompt_tokens|predicted_tokens)_total)(?:{outcome="(\w+)"})? (\S+)$',
        server.get("/metrics").text,
        re.MULTILINE,
    )
    return {outcome or name: float(value) for name, outcome, value in lines}


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}, {"n": 2, "stream": True}])
def test_an_answer_is_counted_before_its_last_byte(late: Server, more: dict[str, Any]) -> None:
    before = counted(late)
    prompt = [5] * 20
    answer = late.complete(prompt, max_tokens=3, ignore_eos=True, cache_prompt=False, **more)
    after = counted(late)
    assert answer.status_code == 200
    assert late.metric("h2o_busy") > 0, "the inference thread has come back too soon for this test"
    assert after["length"] - before.get("length", 0) == 1
    assert after["h2o_predicted_tokens_total"] - before["h2o_predicted_tokens_total"] == 3 * more.get("n", 1)
    assert after["h2o_prompt_tokens_total"] - before["h2o_prompt_tokens_total"] == 20
    late.wait_until_idle()
    assert counted(late) == after, "it is counted once"
