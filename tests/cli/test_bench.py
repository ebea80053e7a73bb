"""h2o-bench on the example bundle: the shape of its results, and what it refuses."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests import bundles
from tests.cli.conftest import Run, Start

from h2o_cli.arithmetic import dense_flop
from h2o_cli.bench.benchmark_model import BenchmarkModel
from h2o_cli.bench.contestants import Contestant, Entry, models
from h2o_cli.bench.measure import Measurement, Rounds
from h2o_cli.bench.systems.h2o import H2OSystem
from h2o_export.checkpoints import open_checkpoint
from h2o_export.dense.graphs import checkpoint_tensors
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.dense_graphs.choice import default_products
from h2o_runtime.dense_graphs.native import can_widen, is_fast
from h2o_runtime.policies.prefill import Query

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
LLAMA_CPP = importlib.util.find_spec("llama_cpp") is not None
RULE = ("--repetitions", 2, "-ub", 64, "--h2o-local", 16, "--h2o-heavy", 16, "-t", 1)
SMALL = (*RULE, "--peers", "none")
KEEPING = "import os; os.environ['XDG_CACHE_HOME'] = '{}'"  # in which folder a command keeps its files


# Results


def test_prefill_results_in_every_form(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    flags = ("--lengths", "96,256", *SMALL, "--json", "--csv", table)
    measures = (  # the machine, here with small matrices
        "from unittest import mock; mock.patch.stopall()\n"
        "from h2o_cli.bench import machine; machine.SIDE, machine.FLOATS = 256, 1 << 20\n"
    )
    done = h2o("bench", "prefill", tiny_bundle, *flags, code=measures)
    assert (done.returncode, done.stderr) == (0, b"")
    document: dict[str, Any] = json.loads(done.stdout)
    rows = document["rows"]
    assert [(row["length"], row["name"]) for row in rows] == [
        (96, "h2o"),
        (96, "full"),
        (256, "h2o"),
        (256, "full"),
    ]
    for row in rows:
        assert row["min_s"] <= row["q1_s"] <= row["median_s"] <= row["q3_s"] <= row["max_s"]
        assert row["tokens_per_s"] == pytest.approx(row["length"] / row["median_s"])
        assert row["dense_s"] + row["phase1_s"] + row["phase2_s"] + row["tail_s"] <= row["max_s"]
        assert row["flop_per_s"] == pytest.approx(row["floor_share"] * document["measured_rates"]["flops"])
        assert row["bytes_per_s"] is None
        assert row["floor_share"] == pytest.approx(row["floor_s"] / row["median_s"])
        assert row["peak_bytes"] > row["libraries_bytes"] > 0
        assert (row["threads"], row["precision"], row["repetitions"]) == (1, "float32", 2)
    assert rows[2]["phase2_s"] > 0 == rows[3]["phase2_s"]
    assert rows[0]["h2o_speedup"] == 1.0
    assert document["measured_rates"]["flops"] > 1e9 < document["measured_rates"]["bandwidth"]
    assert document["measured_rates"]["bandwidth_by"] in ("maximum", "dot product")
    assert document["machine"]["cores"] >= 1
    written = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    assert list(written[0]) == [name for name in rows[0] if name != "seconds"]
    assert [row["name"] for row in written] == [row["name"] for row in rows]
    assert float(written[3]["median_s"]) == rows[3]["median_s"]


def test_decode(h2o: Run, tiny_bundle: Path) -> None:
    sparse = ("--decode", "quest budget=16 dense_layers=0")
    flags = ("--lengths", 200, *SMALL, "--decode-tokens", 3, "--text", __file__, *sparse)
    done = h2o("bench", "decode", tiny_bundle, *flags, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    row, quest = json.loads(done.stdout)["rows"]
    assert (row["mode"], row["name"], row["length"]) == ("decode", "h2o", 200)
    assert row["tokens_per_s"] == pytest.approx(1 / row["median_s"])
    assert (quest["name"], "budget=16" in quest["settings"]) == ("h2o, quest", True)
    assert quest["floor_s"] < row["floor_s"]


def test_attention_as_a_table(h2o: Run, tiny_bundle: Path) -> None:
    others = ("--beside", "minference", "--peers", "onnxruntime GQA")
    done = h2o("bench", "attention", tiny_bundle, "--lengths", 192, *RULE, *others)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert all(name in text for name in ("h2o", "minference", "full", "onnxruntime GQA", "GFLOP/s"))


@pytest.mark.skipif(LLAMA_CPP, reason="llama-cpp-python is installed")
def test_a_peer_that_is_not_installed_is_named(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("bench", "prefill", tiny_bundle, "--lengths", 64, *RULE, "--peers", "llama.cpp", "--json")
    (absent,) = json.loads(done.stdout)["absent"]
    assert absent["name"] == "llama.cpp"
    assert "pip install" in absent["reason"]


# Measurements that are stopped


def test_a_stopped_measurement_keeps_its_rows(start_h2o: Start, tiny_bundle: Path, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    flags = ("--lengths", "96,1000", *SMALL[2:], "--repetitions", 12, "--json", "--csv", table)
    process = start_h2o("bench", "prefill", tiny_bundle, *flags)
    while not (table.exists() and ",1,1000," in table.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (129, b"", b"stopped\n")
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    done = {(row["length"], row["name"]): int(row["repetitions"]) for row in rows}
    assert done["96", "h2o"] == done["96", "full"] == 12
    assert 0 < done["1000", "h2o"] < 12


def test_lengths_beyond_the_trained_context_are_told(h2o: Run, shared_folder: Path) -> None:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")[1]
    flags = (*SMALL[2:], "--repetitions", 1)
    done = h2o("bench", "attention", bundle, "--lengths", 4100, *flags)
    assert done.returncode == 0
    assert b"4100 tokens are beyond the 4096 positions" in b" ".join(done.stderr.split())


# Refusals


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--lengths", "1024,many"), "no list of lengths"),
        (("--lengths", 20_000_000), "lengths: 20,000,000 tokens are beyond the context"),
        (("--text", __file__, "--lengths", 99_999), "name a longer text, or shorter --lengths"),
        (("--peers", "vllm"), "'vllm' is no peer: choose from llama.cpp"),
        (("--compute", "dense_form=blocks"), "--compute dense_form=blocks has no effect with float weights"),
        (
            ("--beside", "batch_size=2048", "--beside", "batch_size=2048"),
            "it is measured already: leave it out",
        ),
    ],
)
def test_wrong_flags(h2o: Run, tiny_bundle: Path, flags: tuple[object, ...], says: str) -> None:
    done = h2o("bench", "prefill", tiny_bundle, *flags)
    assert done.returncode == 2
    assert says in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_places_are_checked_before_measuring(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    done = h2o("bench", "prefill", tmp_path / "nothing")
    assert done.returncode == 1
    assert "neither a bundle's folder nor a built-in shape" in done.stderr.decode()
    done = h2o("bench", "prefill", tiny_bundle, "--csv", tmp_path / "missing" / "rows.csv")
    assert done.returncode == 1
    assert "is not a folder that exists" in done.stderr.decode()


def test_only_a_file_of_its_own_is_replaced(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("the only copy")
    done = h2o("bench", "prefill", tiny_bundle, "--lengths", 64, *SMALL, "--csv", thesis)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"thesis.txt: is a file, but no rows of h2o-bench; name another file" in done.stderr
    assert thesis.read_text() == "the only copy"


# Arithmetic


def test_a_contestant_that_dies_is_a_line_of_the_results() -> None:
    choices = dict.fromkeys(("attention", "attention_precision", "dense_form"), "auto")
    settings = {"threads": 1, "prefill": {}, "bundle": "/nowhere", "dense_precision": "float32", **choices}
    broken = Contestant("h2o", "h2o", "", settings | {"backend": "onnxruntime", "device": "cpu"})
    measurement = Measurement([broken], Rounds((64,), 1, 0, 60.0), lambda text: None)
    measurement.run()
    assert measurement.series == []
    assert "/nowhere" in measurement.missing[0].reason


def test_all_of_the_last_layer_but_its_keys_values_and_queries_runs_on_one_row(shared_folder: Path) -> None:
    checkpoint, bundle = bundles.named(shared_folder, "llama-g2-d64-llama3")
    model = Manifest.read(bundle).model
    shapes = checkpoint_tensors(open_checkpoint(str(checkpoint)).plan)
    sizes = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2}
    sizes.pop("model.embed_tokens.weight", None)
    last = f"model.layers.{model.layers - 1}."
    once = [name for name in sizes if name.startswith(last) and ("o_proj" in name or "mlp" in name)]
    assert len(once) == 4
    head = model.vocab_size * model.hidden_size
    every = sum(sizes.values()) - sizes.get("lm_head.weight", 0)
    assert dense_flop(model, 1) == 2 * (every + head)
    assert dense_flop(model, 11) - dense_flop(model, 1) == 20 * (every - sum(sizes[name] for name in once))


def test_ours_is_measured_in_the_form_that_is_asked_for(shared_folder: Path, tmp_path: Path) -> None:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    model = BenchmarkModel.open(str(bundle), tmp_path, "float32", None)
    entry = Entry(model, 1, Query(), "onnxruntime", "cpu", "auto", dense_form="blocks")
    for ours in models(entry, (), decoding=False):
        assert ours.label.endswith(" form=blocks")
        system = H2OSystem(ours.settings)
        system.open(64)
        assert system._generator.loaded.backend.dense_form == "blocks"  # type: ignore[attr-defined]


def test_dense_measures_forms_and_run_uses_the_best(h2o: Run, shared_folder: Path, tmp_path: Path) -> None:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    code = KEEPING.format(tmp_path)
    done = h2o("bench", "dense", bundle, "--length", 64, "--repetitions", 2, "-t", 1, "--json", code=code)
    assert (done.returncode, done.stderr) == (0, b"")
    document = json.loads(done.stdout)
    kinds = [(times["form"], times["precision"]) for times in document["times"]]
    native = [("native", "float32")] * is_fast() + [("native", "bfloat16")] * can_widen()
    assert kinds == [("exact", "float32"), *native, ("blocks", "float32")]
    assert document["times"][0]["loss"] == 0.0
    best = document["best"]
    assert (best["form"], best["precision"]) in kinds
    assert Path(document["file"]).is_relative_to(tmp_path)
    ran = h2o("run", bundle, "-p", "Hello", "-n", 2, "-t", 1, "--json", code=code)
    report = json.loads(ran.stdout)
    assert (report["dense_form"], report["dense_precision"]) == (best["form"], best["precision"])
    said = h2o("run", bundle, "-p", "Hello", "-n", 2, "-t", 1, "-v", code=KEEPING.format("/none"))
    default = f"dense_form={default_products().form} dense_precision=float32, not measured; h2o-bench dense"
    assert default.encode() in b" ".join(said.stderr.split())


def test_dense_looks_at_its_file_before_it_measures(h2o: Run, shared_folder: Path) -> None:
    bundle = bundles.named(shared_folder, "llama-g2-d64-llama3", "-int8", weights="int8")[1]
    nowhere = KEEPING.format("/proc/nowhere")
    done = h2o("bench", "dense", bundle, "--repetitions", 10**9, "-t", 1, code=nowhere)
    assert (done.returncode, b"cannot be made" in done.stderr) == (1, True)


def test_dense_refuses_floats(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("bench", "dense", tiny_bundle)
    assert done.returncode == 2
    assert b"its weights are floats: export with --weights" in b" ".join(done.stderr.split())
