"""schemathesis, which reads /openapi.json and sends what it allows and what it does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from tests.server.conftest import Serve
from tests.server.running import ROOT

SCHEMATHESIS = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(SCHEMATHESIS is None, reason="the program schemathesis is not installed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "hooks", "left_out"),
    [
        # Most parameters are those of chats too, and test_random_requests.py sends the others.
        ("examples,coverage", "openapi_once", ["/v1/completions", "/v1/responses"]),
        pytest.param("examples,coverage,fuzzing,stateful", "openapi_hooks", [], marks=pytest.mark.nightly),
    ],
)
def test_schemathesis_finds_nothing(
    serve: Serve, tool_bundle: Path, tmp_path: Path, phases: str, hooks: str, left_out: list[str]
) -> None:
    """All checks but one: not every request that the schema allows can be honoured, and the hooks know which."""
    server = serve("--ctx-size", 64, bundle=tool_bundle)  # where no answer takes long
    config = tmp_path / "schemathesis.toml"
    config.write_text(
        '[[operations]]\ninclude-name = "GET /v1/models/{name}"\nparameters = { name = "tool-llama" }\n'
    )
    command = [str(SCHEMATHESIS), "--config-file", str(config)]
    flags = {
        "--exclude-checks": "positive_data_acceptance",
        "--phases": phases,
        "--max-examples": "20",
        "--seed": "1",
        "--suppress-health-check": "all",
        "--request-timeout": "180",  # seconds; by default ten, which a busy machine may need
    }
    ended = subprocess.run(
        [
            *(*command, "run", f"{server.url}/openapi.json", "--no-color"),
            *chain(*flags.items(), *(("--exclude-path", path) for path in left_out)),
        ],
        env={**os.environ, "SCHEMATHESIS_HOOKS": f"tests.server.{hooks}", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,  # it leaves its files there
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    operations = sum(map(len, server.get("/openapi.json").json()["paths"].values()))
    assert operations > 15
    assert f"{operations - len(left_out)} selected / {operations} total" in ended.stdout
    assert "Traceback" not in server.log
    assert server.chat().status_code == 200
