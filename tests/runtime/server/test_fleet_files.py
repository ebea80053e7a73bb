"""examples/fleet: the dashboard asks for figures that a server has."""

from __future__ import annotations

import json
import re
from pathlib import Path

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
