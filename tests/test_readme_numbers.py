"""README.md's numbers are those of the result files that it names, and its picture is drawn from one of them."""

from __future__ import annotations

import csv
import math
import re
import statistics
from pathlib import Path

import pytest
from docs.figures import time_against_length

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def quickest(found: list[Row], system: str, length: int) -> Row:
    """The best setting of a system at one length."""
    own = [row for row in found if row["name"] == system and int(row["length"]) == length]
    return min(own, key=lambda row: float(row["median_s"]))


def rounded(value: float) -> str:
    """Three digits, as README writes times."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@pytest.mark.parametrize(
    ("title", "system"),
    [
        ("h2o-edge, the default", "h2o"),
        ("h2o-edge, `--prefill full`", "full"),
        ("OpenVINO GenAI, XAttention", "openvino-genai xattention"),
        ("OpenVINO GenAI, dense", "openvino-genai dense"),
    ],
)
def test_the_table_of_times(title: str, system: str) -> None:
    found = [quickest(rows("smollm2-int8/prefill-zen4.csv"), system, length) for length in (4096, 8000)]
    ratios = ["" if system == "h2o" else f" ({float(row['h2o_speedup']):.2f})" for row in found]
    times = [rounded(float(row["median_s"])) + ratio for row, ratio in zip(found, ratios, strict=True)]
    assert f"| {title} | {' | '.join(times)} |" in README


def test_the_losses_beside_the_table() -> None:
    def changes(system: str, digits: int) -> list[str]:
        found = [quickest(rows("smollm2-int8/prefill-xeon.csv"), system, length) for length in (4096, 7000)]
        return [f"{float(row['perplexity_change']):.{digits}%}".replace("%", " %") for row in found]

    theirs, ours = changes("openvino-genai xattention", 0), changes("h2o", 1)
    assert f"after a prompt of 4,096 tokens by {theirs[0]}, and after 7,000 by {theirs[1]}" in README
    assert f"changed it by {ours[0]} and {ours[1]}" in README


def test_the_ratios_by_length() -> None:
    found = rows("smollm2-int8/prefill-lengths.csv")
    ratios = [
        round(float(quickest(found, "full", length)["h2o_speedup"]), 2)
        for length in (1024, 4096, 8000, 16384)
    ]
    told = re.search(
        r"took ([\d.]+) times sparse prefill's time at 1,024 tokens, ([\d.]+) at 4,096, ([\d.]+) at 8,000 and "
        r"([\d.]+) at 16,384",
        README,
    )
    assert told is not None
    assert [float(one) for one in told.groups()] == ratios
    assert ratios[-1] >= 2  # "half the time" of the headline


def test_the_picture_is_drawn_from_that_file() -> None:
    assert time_against_length.PICTURE.read_text(encoding="utf-8") == time_against_length.draw()
    assert "(docs/figures/time_against_length.svg)" in README


def increases(name: str, length: int) -> list[float]:
    """Of the perplexity after a prompt, in percent, by text."""
    found = [row for row in rows(name) if row["contestant"] == "default" and int(row["tokens"]) == length]
    return [100 * float(row["increase"]) for row in found]


def error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def test_the_losses_after_a_prompt() -> None:
    half, larger = (
        increases("quality-continuation.csv", 8192),
        increases("quality-continuation-1.5b.csv", 8192),
    )
    for one in (half, larger):
        assert f"{round(statistics.mean(one), 1) + 0.0:.1f} ± {error(one):.1f} % at 8,192 tokens" in README
    most = max(*half, *larger)
    assert re.search(rf"0\.5B and 1\.5B, up to {math.ceil(10 * most) / 10} % in a text", README)
    long = increases("quality-continuation.csv", 16384)
    spread = f"{statistics.mean(long):.2f} ± {error(long):.2f} % at 16,384"
    assert f"{spread} (0.5B, {len(long)} texts, up to {max(long):.1f} %)" in README
    for length in (8192, 16384):
        now = increases("quality-zen3.csv", length)
        spread = f"{statistics.mean(now):.1f} ± {error(now):.1f} % at {length:,}"
        assert f"{spread} ({len(now)} texts, up to {max(now):.1f} %)" in README


def test_the_loss_inside_a_prompt() -> None:
    found = [row for row in rows("quality-heldout-4096.csv") if row["contestant"] == "query 32/128 L64 H448"]
    assert len(found) == 8
    mean = statistics.mean(float(row["increase"]) for row in found)
    assert f"Inside a prompt of 4,096 tokens the increase is {mean:.1%}".replace("%", " %") in README


def test_readme_makefile_and_contributing_tell_one_size_of_the_demos_packages() -> None:
    told = {
        "README.md": r"(\d+ [GM]B) with the CPU build of torch",
        "CONTRIBUTING.md": r"make demo .*; (\d+ [GM]B)\n",
        "Makefile": r"Packages of (\d+ [GM]B) are installed",
    }
    sizes = {file: re.findall(size, (ROOT / file).read_text(encoding="utf-8")) for file, size in told.items()}
    assert list(sizes.values()) == [["900 MB"]] * 3, sizes
