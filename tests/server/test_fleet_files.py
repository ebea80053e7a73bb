"""examples/fleet: the dashboard asks for figures that a server has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

import yaml
from tests.server.conftest import Serve

from h2o_cli.serve import main as h2o_serve

FLEET = Path(__file__).parents[2] / "examples" / "fleet"
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


UNITS = [FLEET / "smg.service", FLEET.parents[1] / "docs" / "h2o-serve.service"]


def unit_of(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text().replace("\\\n", " "))
    return unit


def test_the_unit_gives_h2o_serve_flags_that_it_has(tmp_path: Path) -> None:
    unit = unit_of(UNITS[1])["Service"]
    (tmp_path / "keys").write_text("secret")
    _, _, *flags = shlex.split(unit["ExecStart"].replace("/var/lib/h2o-edge", str(tmp_path)))
    h2o_serve.make_context("h2o-serve", [str(tmp_path), *flags])


def test_prometheus_asks_every_device_of_the_fleet() -> None:
    found = yaml.safe_load((FLEET / "prometheus.yml").read_text())
    h2o, gateway = (job["static_configs"][0]["targets"] for job in found["scrape_configs"])
    workers = re.findall(r"http://(\S+)", unit_of(UNITS[0])["Service"]["ExecStart"])
    assert h2o == workers
    port = re.search(r"--prometheus-port (\d+)", unit_of(UNITS[0])["Service"]["ExecStart"])
    assert port is not None
    assert gateway[0].endswith(f":{port[1]}")


def test_litellms_proxy_asks_every_device_of_the_fleet() -> None:
    models = yaml.safe_load((FLEET / "litellm.yaml").read_text())["model_list"]
    asked = [model["litellm_params"]["api_base"] for model in models]
    workers = re.findall(r"http://(\S+)", unit_of(UNITS[0])["Service"]["ExecStart"])
    assert asked == [f"http://{worker}/v1" for worker in workers]
