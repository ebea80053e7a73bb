"""Numbers of README.md and docs are those of their result files, and README's picture is drawn from one."""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from pathlib import Path

import pytest
from docs.figures import time_against_length

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


def words(page: str) -> str:
    """The text of a page on one line."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


README = words("README.md")
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
    ("title", "system"), [("sparse prefill before rule 1", "h2o"), ("full attention", "full")]
)
def test_the_table_of_times(title: str, system: str) -> None:
    found = rows("smollm2-int8/prefill-lengths.csv")
    lengths = (1024, 4096, 8000, 16384)
    own = [quickest(found, system, length) for length in lengths]
    assert f"| {title} | {' | '.join(rounded(float(row['median_s'])) for row in own)} |" in README
    ratios = [f"{float(quickest(found, 'full', length)['h2o_speedup']):.2f}" for length in lengths]
    assert f"| full attention / sparse | {' | '.join(ratios)} |" in README


def test_the_time_of_rule_1() -> None:
    found = {
        (row["model"][:4], row["prefill"]): float(row["seconds"]) for row in rows("prefill-rule-1-zen3.csv")
    }
    smol, qwen = (found[model, "h2o"] / found[model, "full"] for model in ("Smol", "Qwen"))
    assert (
        f"{smol:.2f} times the time of full attention for 16,384 tokens of SmolLM2, {qwen:.2f} for" in README
    )
    assert smol < 0.7  # "a third off" of the headline


@pytest.mark.parametrize("name", ["XAttention", "dense"])
def test_the_table_of_other_systems(name: str) -> None:
    found = [
        quickest(rows("smollm2-int8/prefill-zen4.csv"), f"openvino-genai {name.lower()}", length)
        for length in (1024, 4096, 8000)
    ]
    times = " | ".join(rounded(float(row["median_s"])) for row in found)
    assert f"| OpenVINO GenAI, {name} | {times} | |" in README


def test_what_another_system_loses() -> None:
    found = [
        quickest(rows("smollm2-int8/prefill-xeon.csv"), "openvino-genai xattention", n) for n in (4096, 7000)
    ]
    lost = [f"{float(row['perplexity_change']):.0%}".replace("%", " %") for row in found]
    assert f"after a prompt of 4,096 tokens by {lost[0]}, and after 7,000 by {lost[1]}" in README


def test_the_picture_is_drawn_from_that_file() -> None:
    assert time_against_length.PICTURE.read_text(encoding="utf-8") == time_against_length.draw()
    assert "(docs/figures/time_against_length.svg)" in README


def of_texts(name: str, contestant: str, length: int, column: str) -> list[float]:
    found = [row for row in rows(name) if row["contestant"] == contestant and int(row["tokens"]) == length]
    return [float(row[column]) for row in found]


def spread(values: list[float], digits: int, factor: float = 1) -> str:
    """Mean and standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{factor * statistics.mean(values):.{digits}f} ± {factor * error:.{digits}f}"


def test_the_losses_after_a_prompt() -> None:
    changes = of_texts("quality-zen3.csv", "default", 8192, "increase")
    most = math.ceil(1000 * max(changes)) / 10
    assert f"{spread(changes, 1, 100)} % at 8,192 tokens ({len(changes)} texts, up to {most} %;" in README
    kl = statistics.mean(of_texts("quality-zen3.csv", "default", 8192, "kl"))
    top = statistics.mean(of_texts("quality-zen3.csv", "default", 8192, "top1"))
    page = words("docs/quality.md")
    assert f"| 8,192 | 8, 1,024 | {spread(changes, 2, 100)} % | {kl:.4f} | {100 * top:.1f} % |" in page


def test_the_losses_of_codes() -> None:
    found = {(row["tokens"], row["contestant"]): row["loss"] for row in rows("quality-codes-zen3.csv")}
    told = re.findall(r"\| ([\d,]{5,6}) \| 1 \| (0\.\d+) \| (0\.\d+) \|", words("docs/quality.md"))
    assert len(told) == 3
    for tokens, full, default in told:
        for contestant, loss in (("full", full), ("default", default)):
            assert f"{float(found[tokens.replace(',', ''), contestant]):.3f}" == loss


@pytest.mark.parametrize("weights", ["dense", "float16"])
def test_the_losses_of_products_in_bfloat16(weights: str) -> None:
    found = rows(f"quality-{weights}-bfloat16.csv")
    columns = [
        [float(row[name]) for row in found] for name in ("perplexity_increase", "divergence", "same_token")
    ]
    told = [spread(columns[0], 3, 100) + " %", spread(columns[1], 5), spread(columns[2], 2, 100) + " %"]
    assert f"| +{' | '.join(told)} |" in words("docs/precision.md")


def test_full_attention_beside_llama_cpp() -> None:
    page = words("docs/benchmarks.md")
    for title, file in (
        ("Gemma 3 270M", "gemma3-270m-int8"),
        ("Qwen2.5-Coder 0.5B", "qwen2.5-coder-0.5b-int8"),
    ):
        found = [row for row in rows(f"{file}/prefill.csv") if row["length"] == "4096"]
        ours, theirs = (
            rounded(statistics.median(float(row["median_s"]) for row in found if row["name"] == name))
            for name in ("full", "llama.cpp")
        )
        assert f"| {title} | AMD EPYC (Zen 5) | {ours} | {theirs} |" in page
    for model in ("Granite-4-H-350M", "LFM2.5-1.2B", "Qwen3.5-2B"):
        times = {
            row["name"]: rounded(float(row["median_s"]))
            for row in rows("hybrids.csv")
            if (row["model"], row["mode"], row["length"]) == (model, "prefill", "4096")
        }
        assert re.search(
            rf"\| {model}, \d layers \| [^|]* \| {times['full']} \| {times['llama.cpp']} \|", page
        )


def test_the_speed_on_a_gpu() -> None:
    found = map(json.loads, (RESULTS / "gpu-h200-model.jsonl").read_text().splitlines())
    times = {
        (row["commit"], row["model"], row["n"]): row["first_token_ms"]
        for row in found
        if row["table"] == "model" and "first_token_ms" in row
    }
    of_commit = dict.fromkeys((4096, 8192, 16384, 32768, 65536), "866c6b43") | {131072: "0bcb2536"}
    ratios = [
        f"{times[commit, 'full', n] / times[commit, 'window', n]:.2f}" for n, commit in of_commit.items()
    ]
    assert f"| `h2o score=window` | {' | '.join(ratios)} |" in words("docs/policies.md")


def test_the_times_of_other_policies() -> None:
    found = rows("smollm2-135m/policies.csv") + rows("smollm2-135m/policies-16k.csv")
    long, short = (
        {
            name: f"{float(quickest(found, name, n)['median_s']):.1f}"
            for name in ("minference", "subquadratic", "full")
        }
        for n in (16384, 4096)
    )
    told = (
        f"At 16,384 tokens `minference` took {long['minference']} s and `subquadratic` {long['subquadratic']}, "
        f"where full attention took {long['full']}; at 4,096 tokens {short['minference']}, "
        f"{short['subquadratic']} and {short['full']}"
    )
    assert told in words("docs/policies.md")


def test_the_share_of_choosing_keys() -> None:
    table = (ROOT / "bench" / "kernels" / "results" / "choosing-amd-zen3.txt").read_text(encoding="utf-8")
    shares = re.findall(r"SmolLM2-135M +\d+ +int16 .* (\S+)\n", table)
    page = words("docs/kernels.md")
    assert f"take {shares[0]} of the time of TiledMemoryAttention" in page
    assert f"8,192 tokens, and {shares[1]} of 16,384" in page


def test_readme_makefile_and_contributing_tell_one_size_of_the_demos_packages() -> None:
    told = {
        "README.md": r"(\d+ [GM]B) with the CPU build of torch",
        "CONTRIBUTING.md": r"make demo .*; (\d+ [GM]B)\n",
        "Makefile": r"Packages of (\d+ [GM]B) are installed",
    }
    sizes = {file: re.findall(size, (ROOT / file).read_text(encoding="utf-8")) for file, size in told.items()}
    assert list(sizes.values()) == [["900 MB"]] * 3, sizes
