"""What h2o-run says of prompts that the context does not hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Run

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("flags", [(), ("--chat",)])
@pytest.mark.parametrize(
    ("words", "context", "remedy"),
    [
        (9000, 8192, "shorten the prompt: the model was trained for 8,192 tokens"),
        (9000, 64, "add a --ctx-size above \\d+, at most 8192"),  # not counted whole
        (20, 8, "add --ctx-size "),
    ],
)
def test_a_context_beyond_the_models_own_limit_is_no_remedy(
    h2o: Run, tiny_bundle: Path, tmp_path: Path, flags: tuple[str, ...], words: int, context: int, remedy: str
) -> None:
    (tmp_path / "prompt").write_text("word " * words)
    done = h2o("run", tiny_bundle, "-f", tmp_path / "prompt", "-c", context, "-n", 2, *flags)
    refused = done.stderr.decode()
    assert done.returncode == 1
    assert re.search(remedy, refused)
    assert refused.count("--ctx-size") == (context < 8192)
    assert "/reset" not in refused
