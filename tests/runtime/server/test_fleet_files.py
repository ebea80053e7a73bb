"""examples/fleet: the dashboard asks for figures that a server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.runtime.server.conftest import Serve

FLEET = Path(__file__).parents[3] / "examples" / "fleet"
# Of PromQL: what stands before a bracket, a brace or an operator and is no function.
METRIC = re.compile(r"\bh2o_\w+")


def test_every_figure_of_the_dashboard_is_told_by_a_server(serve: Serve) -> None:
    dashboard = json.loads((FLEET / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in METRIC.findall(target["expr"])
    }
    page = serve().get("/metrics").text
    told = set(re.findall(r"^# TYPE (\S+) ", page, re.MULTILINE)) | set(
        re.findall(r"^(\w+)", page, re.MULTILINE)
    )
    assert len(asked) >= 10
    assert asked <= told


PROMTOOL = shutil.which("promtool")


def dashboard_rules() -> dict[str, object]:
    """Every query of the dashboard as a recording rule, which promtool can check."""
    panels = json.loads((FLEET / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = [re.sub(r"\$__\w+", "5m", query) for query in queries]
    return {
        "groups": [
            {"name": "dashboard", "rules": [{"record": f"query:{i}", "expr": e} for i, e in enumerate(asked)]}
        ]
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: it is in the package prometheus")
def test_prometheus_takes_the_configuration_and_the_queries(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps(dashboard_rules()))
    for kind, file in (("config", FLEET / "prometheus.yml"), ("rules", rules)):
        command = [str(PROMTOOL), "check", kind, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


ANALYZE = shutil.which("systemd-analyze")
UNITS = [FLEET / "smg.service", FLEET.parents[1] / "docs" / "h2o-serve.service"]


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed: it is in the package systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    """But for the program, which is installed elsewhere."""
    text = re.sub(r"^(ExecStart=)\S+", rf"\1{shutil.which('true')}", unit.read_text(), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(text)
    command = [str(ANALYZE), "verify", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
