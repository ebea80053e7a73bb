"""h2o-run in processes of its own: what it prints and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run

from h2o_runtime.policies.prefill import PREFILL, Query

PROMPT = "The module defines a class that reads the"
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def answer(h2o: Run, tiny_bundle: Path) -> Any:
    """`answer("-n", 4)` → the JSON document for PROMPT and the given flags."""

    def run(*flags: object, prompt: tuple[object, ...] = ("-p", PROMPT), **options: Any) -> dict[str, Any]:
        done = h2o("run", tiny_bundle, *prompt, "--json", *flags, **options)
        assert (done.returncode, done.stderr) == (0, b"")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


# What it prints


def test_streamed_text_is_that_of_json(h2o: Run, tiny_bundle: Path, answer: Any) -> None:
    flags = ("-n", 40, "--temperature", 1.2, "--seed", 5)
    document = answer(*flags)
    streamed = h2o("run", tiny_bundle, "-p", PROMPT, *flags)
    assert streamed.stdout.decode() == document["answer"] + "\n"
    assert (streamed.returncode, streamed.stderr) == (0, b"")  # no bar, no summary: this is no terminal


def test_an_answer_is_the_same_with_drafts_and_without(answer: Any) -> None:
    flags = ("-n", 60, "--ignore-eos", "-c", 600, "--compute", "dense_form=native", "--device", "cpu")
    ahead, plain = answer(*flags), answer(*flags, "--speculate", "off")
    assert ahead["tokens"] == plain["tokens"]
    assert (ahead["speculate"], plain["speculate"]) == ("lookup", "off")
    assert ahead["speculate_off_because"] is plain["speculate_off_because"] is None
    assert ahead["timings"]["draft_n"] >= ahead["timings"]["draft_n_accepted"] > 0
    assert plain["timings"]["draft_n"] == 0
    sparse = answer(*flags, "--decode", "quest")
    assert sparse["speculate"] == "off"
    assert "quest" in sparse["speculate_off_because"]


def test_json_tells_all(answer: Any) -> None:
    document = answer("-n", 6, "-ub", 512, "--h2o-heavy", 192, "--ignore-eos", "-c", 600, "--logprobs", 2)
    timings = document["timings"]
    assert document["finish_reason"] == "length"
    assert timings["predicted_n"] == len(document["tokens"]) == 6
    assert timings["cache_n"] == 0 < timings["prompt_n"] < 30
    assert timings["prompt_per_second"] == pytest.approx(1e3 * timings["prompt_n"] / timings["prompt_ms"])
    assert document["context"] == 600
    assert document["prefill"] == PREFILL.settings_of(Query(chunk_size=512, heavy=192))
    assert 20 << 20 < document["peak_memory_bytes"] < 2 << 30
    assert [entry["token"] for entry in document["logprobs"]] == document["tokens"]
    for entry in document["logprobs"]:  # greedy: the best is the one that was taken
        assert entry["top"][0] == {key: entry[key] for key in ("token", "text", "logprob")}
        assert len(entry["top"]) == 2
    assert "".join(entry["text"] for entry in document["logprobs"]) == document["answer"]


def test_the_same_seed_gives_the_same_text(answer: Any) -> None:
    flags = ("-n", 24, "--temperature", 1.5)
    first = answer(*flags)
    assert answer(*flags, "--seed", first["seed"])["tokens"] == first["tokens"]
    assert answer(*flags, "--seed", first["seed"] + 1)["tokens"] != first["tokens"]


def test_stop_strings_end_the_answer_and_stay_out(h2o: Run, tiny_bundle: Path, answer: Any) -> None:
    whole = answer("-n", 40)["answer"]
    stop = whole[9:13]
    cut = answer("-n", 40, "--stop", "never said", "--stop", stop)
    assert cut["answer"] == whole[: whole.index(stop)]
    assert (cut["finish_reason"], cut["stop"]) == ("stop", stop)
    streamed = h2o("run", tiny_bundle, "-p", PROMPT, "-n", 40, "--stop", stop)
    assert streamed.stdout.decode() == cut["answer"] + "\n"


def test_a_prompt_from_everywhere(answer: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Überschrift – 標題\n", encoding="utf-8")
    text = file.read_text(encoding="utf-8")
    expected = answer("-n", 3, prompt=("-p", text.removesuffix("\n")))
    sources: list[tuple[tuple[object, ...], bytes]] = [
        (("-f", file), b""),
        (("-f", "-"), text.encode()),
        (("-",), text.encode().replace(b"\n", b"\r\n")),
    ]
    for prompt, data in sources:
        document = answer("-n", 3, prompt=prompt, input=data)
        assert document["tokens"] == expected["tokens"], prompt
        assert document["timings"]["prompt_n"] == expected["timings"]["prompt_n"], prompt


def test_output_is_utf8_in_any_locale(h2o: Run, tiny_bundle: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    flags = ("-n", 30, "--temperature", 40, "--seed", 1)  # so hot that rare characters come
    done = h2o("run", tiny_bundle, "-p", PROMPT, *flags, env=env)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.decode("utf-8").isascii()


def test_verbose_speaks_on_stderr_only(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("run", tiny_bundle, "-p", PROMPT, "-n", 2, "-v", "--json")
    json.loads(done.stdout)
    assert b"context 8192" in done.stderr


# What it refuses

MISUSE: dict[str, tuple[tuple[object, ...], int, str]] = {
    "no prompt": ((), 2, "no prompt: give --prompt"),
    "two documents": (("-f", __file__, "-"), 2, "more than one document"),
    "a bare word": (("hello",), 2, "unexpected argument 'hello'"),
    "empty prompt": (("-p", ""), 1, "the prompt is empty: --prompt"),
    "n 0": (("-p", "a", "-n", 0), 2, "0 is not in the range x>=1"),
    "context beyond positions": (("-p", "a", "-c", 1 << 25), 2, "is not in the range 1<=x<=16777216"),
    "M >= S": (("-p", "a", "-ub", 512), 2, "local + heavy is 64 + 448 = 512, which must be below chunk_size"),
    "no setting": (("-p", "a", "--prefill", "h2o hevy=9"), 2, "has no setting hevy: did you mean heavy?"),
    "twice": (("-p", "a", "--prefill", "h2o heavy=9", "--h2o-heavy", 9), 2, "heavy is given twice"),
    "another rule's": (
        ("-p", "a", "--prefill", "h2o score=colsum tile=64"),
        2,
        "h2o score=colsum has no tile: it belongs to h2o score=query",
    ),
    "temperature": (("-p", "a", "--temperature", "nan"), 2, "temperature is nan: it must be"),
    "top-p": (
        ("-p", "a", "--temperature", 1, "--top-p", 1.5),
        2,
        "--top-p is 1.5: it must be between 0 and 1",
    ),
    "seed": (("-p", "a", "--temperature", 1, "--seed", -1), 2, "seed is -1"),
    "empty stop": (("-p", "a", "--stop", ""), 2, "stop has ''"),
    "drafts beside quest": (
        ("-p", "a", "--speculate", "lookup", "--decode", "quest"),
        2,
        "--speculate lookup has no effect with --decode quest",
    ),
    "drafts beside exact": (
        ("-p", "a", "--speculate", "lookup", "--compute", "dense_form=exact"),
        2,
        "--speculate lookup has no effect, because without native kernels and products a row depends on those "
        "beside it: leave it out",
    ),
    "chat and -": (("--chat", "-"), 2, "--chat reads its turns from standard input"),
    "unknown flag": (("-p", "a", "--fast"), 2, "No such option '--fast'"),
    "a flag's beginning": (("-p", "a", "--temp", "1"), 2, "Did you mean '--temperature'?"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_sentence_and_the_right_exit_code(case: str, h2o: Run, tiny_bundle: Path) -> None:
    flags, code, sentence = MISUSE[case]
    done = h2o("run", tiny_bundle, *flags)
    message = " ".join(done.stderr.decode().split())
    assert sentence in message
    assert (done.returncode, done.stdout) == (code, b"")
    assert message.lower().count("error:") == 1
    assert "Traceback" not in message


def test_invalid_utf8_is_told_with_its_offset(h2o: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    bad = "Grüße".encode() + b"\xc3("
    file = tmp_path / "latin.txt"
    file.write_bytes(bad)
    for source, name in ((("-f", file), str(file)), (("-",), "standard input")):
        done = h2o("run", tiny_bundle, *source, input=bad)
        assert done.returncode == 1
        assert f"{name} is not valid UTF-8: byte 0xc3 at offset 7" in done.stderr.decode()


def test_the_remedy_for_a_long_prompt_works(h2o: Run, tiny_bundle: Path) -> None:
    args = ("run", tiny_bundle, "-p", "word " * 90, "-n", 9, "--ignore-eos", "--json")
    refused = h2o(*args, "-c", 64)
    size = int(re.search(rb"--ctx-size (\d+)", refused.stderr)[1])  # type: ignore[index]
    document = json.loads(h2o(*args, "-c", size).stdout)
    assert document["timings"]["predicted_n"] == 9


def test_a_full_context_ends_the_answer(answer: Any) -> None:
    document = answer("-c", 16, "-n", 100, "--ignore-eos")
    timings = document["timings"]
    assert document["finish_reason"] == "length"
    assert timings["prompt_n"] + timings["predicted_n"] == 17  # the last token needs no place in the cache


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from h2o_cli.run.command import main
main(sys.argv[2:])
"""


def test_little_memory_is_told_as_such(tiny_bundle: Path) -> None:
    """Whatever needs it first: a library, or a graph."""
    words = [str(224 << 20), str(tiny_bundle), "-p", "Once", "-n", "1", "-t", "1"]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, env=os.environ | threads
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: out of memory: "), done.stderr
    assert not re.search("installed|pip|export the", done.stderr)


# What it says about a bundle that is not one


@pytest.mark.parametrize(
    ("name", "damage"), [("onnx/phase1.onnx", "missing"), ("tokenizer.json", "truncated")]
)
def test_a_damaged_file_is_named(h2o: Run, bundle_copy: Path, name: str, damage: str) -> None:
    file = bundle_copy / name
    content = file.read_bytes()
    file.unlink()
    if damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    done = h2o("run", bundle_copy, "-p", "a")
    message = done.stderr.decode()
    assert (done.returncode, done.stdout) == (1, b"")
    assert message.startswith(f"error: {file}: {damage[:7]}") or damage in message
    assert str(file) in message
    assert len(message.splitlines()) == 1


def test_a_flipped_bit_is_refused_where_it_is_asked_for(h2o: Run, bundle_copy: Path) -> None:
    path = bundle_copy / "onnx" / "weights" / "dense_01.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    arguments = ("run", bundle_copy, "-p", "Hello", "-n", 1)
    assert h2o(*arguments).returncode == 0
    done = h2o(*arguments, "--verify")
    assert done.returncode != 0
    assert f"{path}: its content is not what was exported" in " ".join(done.stderr.decode().split())


def test_what_is_no_bundle(h2o: Run, tmp_path: Path) -> None:
    cases = {
        tmp_path / "nowhere": "no such folder",
        tmp_path: "no manifest.json, so this is not a bundle",
        Path(__file__): "is a file, not a bundle",
    }
    for path, sentence in cases.items():
        done = h2o("run", path, "-p", "a")
        assert done.returncode == 1
        assert sentence in done.stderr.decode()


def test_a_pipe_needs_no_dash(h2o: Run, tiny_bundle: Path) -> None:
    flags = ("-n", 3, "--temperature", 0, "-c", 600)
    told = h2o("run", tiny_bundle, *flags, "-p", "Once upon a time")
    piped = h2o("run", tiny_bundle, *flags, input=b"Once upon a time\n")
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, told.stdout, b"")
    marked = h2o("run", tiny_bundle, *flags, input="\ufeffOnce upon a time\n".encode())
    assert (marked.returncode, marked.stdout, marked.stderr) == (0, told.stdout, b"")
    nothing = h2o("run", tiny_bundle)  # /dev/null has no prompt to wait for
    assert nothing.returncode == 2
    assert "no prompt: give --prompt TEXT" in nothing.stderr.decode()
