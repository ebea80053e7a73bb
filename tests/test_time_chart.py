"""The demo's chart: bars in proportion to seconds, and axes that end behind the longest."""

from __future__ import annotations

import pytest
from examples.time_chart import Curve, bars, svg

CURVES = [Curve("full", {1000: 1.0, 2000: 4.0}), Curve("sparse", {1000: 1.0, 2000: 2.0})]


def test_bars_are_in_proportion() -> None:
    lines = bars(CURVES).splitlines()
    assert lines[0] == "1,000 tokens"
    assert [line.count("░") + line.count("█") for line in lines] == [0, 10, 10, 0, 40, 20]
    assert lines[-1].startswith("  sparse █")
    assert lines[-1].endswith(" 2.00 s")


@pytest.mark.parametrize(
    ("longest", "ticks"), [(0.031, "0.032"), (2.67, "3.2"), (4.0, "4"), (33.4, "40"), (101.0, "120")]
)
def test_the_axis_of_a_picture_ends_at_a_round_number(longest: float, ticks: str) -> None:
    drawn = svg([Curve("full", {1000: longest})], "seconds")
    assert f'text-anchor="end">{ticks}</text>' in drawn
    assert drawn.startswith("<svg ")
    assert drawn.endswith("</svg>\n")
