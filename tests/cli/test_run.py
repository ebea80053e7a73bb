"""h2o-run in processes of its own: what it prints, what it refuses, and how it stops."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import termios
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from tests.cli.conftest import Run, Start

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tiny-llama"
PROMPT = "The module defines a class that reads the"
pytestmark = pytest.mark.timeout(120)


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


def test_json_tells_all(answer: Any) -> None:
    document = answer("-n", 6, "-ub", 512, "--h2o-heavy", 64, "--ignore-eos", "-c", 600, "--logprobs", 2)
    timings = document["timings"]
    assert document["finish_reason"] == "length"
    assert timings["predicted_n"] == len(document["tokens"]) == 6
    assert timings["cache_n"] == 0 < timings["prompt_n"] < 30
    assert timings["prompt_per_second"] == pytest.approx(1e3 * timings["prompt_n"] / timings["prompt_ms"])
    assert document["context"] == 600
    assert document["prefill"] == {
        "policy": "h2o",
        "chunk_size": 512,
        "batch_size": 4096,
        "local": 256,
        "heavy": 64,
        "score": "colsum",
        "score_window": 64,
        "score_heads": "kv",
        "sink": 0,
        "dense_tail": 128,
    }
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
        (("-p", "-"), text.encode()),
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


def test_policies_answer_alike_on_a_short_prompt(answer: Any) -> None:
    assert answer("-n", 8, "--prefill", "full")["tokens"] == answer("-n", 8)["tokens"]


def test_verbose_speaks_on_stderr_only(h2o: Run, tiny_bundle: Path) -> None:
    done = h2o("run", tiny_bundle, "-p", PROMPT, "-n", 2, "-v", "--json")
    json.loads(done.stdout)
    assert b"context 8192" in done.stderr


# What it refuses

MISUSE: dict[str, tuple[tuple[object, ...], int, str]] = {
    "no prompt": ((), 2, "no prompt: give --prompt"),
    "two prompts": (("-p", "a", "-f", __file__), 2, "more than one prompt"),
    "prompt and stdin": (("-p", "a", "-"), 2, "more than one prompt"),
    "a bare word": (("hello",), 2, "unexpected argument 'hello'"),
    "empty prompt": (("-p", ""), 1, "the prompt is empty: --prompt"),
    "empty stdin": (("-",), 1, "the prompt is empty: standard input"),
    "missing file": (("-f", "/no/such/file"), 2, "'/no/such/file' does not exist"),
    "a folder": (("-f", "/"), 2, "is a directory"),
    "invalid prompt": (("-p", b"ab\xffc"), 1, "--prompt is not valid UTF-8: byte 0xff at offset 2"),
    "too long": (("-p", "word " * 90, "-c", 64, "-n", 9), 1, "add --ctx-size"),
    "n 0": (("-p", "a", "-n", 0), 2, "0 is not in the range x>=1"),
    "n negative": (("-p", "a", "-n", -1), 2, "-1 is not in the range"),
    "threads 0": (("-p", "a", "-t", 0), 2, "0 is not in the range"),
    "context huge": (("-p", "a", "-c", 10**30), 2, "is not in the range"),
    "S huge": (("-p", "a", "-ub", 10**20, "-b", 10**21), 2, "must be at most 2147483647"),
    "invalid stop": (("-p", "a", "--stop", b"\xff"), 1, "--stop is not valid UTF-8"),
    "context 0": (("-p", "a", "-c", 0), 2, "0 is not in the range"),
    "M >= S": (
        ("-p", "a", "-ub", 512),
        2,
        "local + heavy is 256 + 256 = 512, which must be below chunk_size",
    ),
    "S > B": (("-p", "a", "-b", 512), 2, "chunk_size (1024) must not exceed batch_size (512)"),
    "L 0": (("-p", "a", "--h2o-local", 0), 2, "local must be at least 1"),
    "w > L": (("-p", "a", "--score", "window", "--score-window", 300), 2, "score_window (300) must be"),
    "sink > H": (("-p", "a", "--sink", 300), 2, "sink (300) must not exceed heavy (256)"),
    "S no number": (("-p", "a", "-ub", "x"), 2, "'x' is not a valid integer"),
    "temperature": (("-p", "a", "--temperature", "nan"), 2, "temperature is nan: it must be"),
    "top-p": (("-p", "a", "--top-p", 1.5), 2, "top_p is 1.5: it must be between 0 and 1"),
    "seed": (("-p", "a", "--seed", -1), 2, "seed is -1"),
    "empty stop": (("-p", "a", "--stop", ""), 2, "stop has ''"),
    "logprobs": (("-p", "a", "--logprobs", 1), 2, "--logprobs needs --json"),
    "system": (("-p", "a", "--system", "b"), 2, "--system needs --chat"),
    "chat and -": (("--chat", "-"), 2, "--chat reads its turns from standard input"),
    "chat json": (("--chat", "--json"), 2, "no prompt"),
    "backend": (("-p", "a", "--backend", "abacus"), 2, "'abacus' is not"),
    "unknown flag": (("-p", "a", "--fast"), 2, "No such option '--fast'"),
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


# What it says about a bundle that is not one


@pytest.mark.parametrize(
    "name",
    ["onnx/dense_00.onnx", "onnx/phase1.onnx", "onnx/weights/dense_03.bin", "tokenizer.json"],
)
@pytest.mark.parametrize("damage", ["missing", "truncated"])
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


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "no manifest.json, so this is not a bundle"),
        (b'{"format": 1, "model"', "manifest.json: cannot be read as JSON"),
        (b"\xff\xfe", "manifest.json: cannot be read as JSON"),
        (b'{"format": 99}', "bundle format 99, this version reads 1"),
        (b'{"format": 1}', "manifest.json: created_by: Field required"),
        (b"[]", "bundle format None"),
    ],
)
def test_a_broken_manifest(h2o: Run, bundle_copy: Path, content: bytes | None, sentence: str) -> None:
    (bundle_copy / "manifest.json").unlink()
    if content is not None:
        (bundle_copy / "manifest.json").write_bytes(content)
    done = h2o("run", bundle_copy, "-p", "a")
    assert done.returncode == 1
    assert sentence in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_what_is_no_bundle(h2o: Run, tmp_path: Path) -> None:
    cases = {
        tmp_path / "nowhere": "no such folder",
        tmp_path: "no manifest.json, so this is not a bundle",
        EXAMPLE: "it looks like a checkpoint, run h2o-export on it",
        Path(__file__): "no such folder",
    }
    for path, sentence in cases.items():
        done = h2o("run", path, "-p", "a")
        assert done.returncode == 1
        assert sentence in done.stderr.decode()


# How it stops


def test_ctrl_c_while_the_prompt_is_read(start_h2o: Start, tiny_bundle: Path) -> None:
    flags = ("-c", 60000, "--prefill", "full", "-b", 128, "-v")  # a quarter of a million small steps
    process = start_h2o("run", tiny_bundle, "-f", _long_text(tiny_bundle.parent), *flags)
    _wait_for(process.stderr, b"prompt of")
    time.sleep(0.5)
    assert process.poll() is None
    code, seconds, out, err = _interrupted(process)
    assert (code, out) == (130, b"")
    assert err.endswith(b"stopped\n")
    assert seconds < 3


def test_ctrl_c_while_answering_keeps_what_there_is(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 8000, "--ignore-eos")
    _, first = _wait_for(process.stdout, b" ")
    code, seconds, rest, err = _interrupted(process)
    assert code == 130
    assert (first + rest).endswith(b"\n")
    assert err == b"stopped\n"
    assert seconds < 3


def test_ctrl_c_with_json_tells_what_there_is(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 8000, "--ignore-eos", "--json", "-v")
    _wait_for(process.stderr, b"prompt of")
    time.sleep(0.3)
    code, _, out, _ = _interrupted(process)
    document = json.loads(out)
    assert (code, document["finish_reason"]) == (130, "cancelled")
    assert 0 < document["timings"]["predicted_n"] < 8000


def test_a_reader_that_leaves_is_no_error(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 4000, "--ignore-eos")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_output_that_cannot_be_written(start_h2o: Start, tiny_bundle: Path, flags: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 4, *flags, stdout=full)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err == b"error: standard output: cannot be written: No space left on device\n"


def test_closed_streams(h2o: Run, tiny_bundle: Path) -> None:
    no_input = h2o("run", tiny_bundle, "-", preexec_fn=lambda: os.close(0))
    assert b"the prompt is empty: standard input" in no_input.stderr
    no_output = h2o("run", tiny_bundle, "-p", "a", "-n", 1, preexec_fn=lambda: os.close(1))
    assert (no_output.returncode, no_output.stderr) == (0, b"")


# Conversations


def test_a_conversation_from_a_pipe(h2o: Run, tiny_bundle: Path) -> None:
    flags = ("--chat", "-n", 5, "--ignore-eos", "--system", "Be brief.")
    done = h2o("run", tiny_bundle, *flags, "-p", "One?", input=b"Two?\n\n/exit\nThree?\n")
    assert (done.returncode, done.stderr) == (0, b"")
    alone = h2o("run", tiny_bundle, *flags, "--json", "-p", "One?")
    first = json.loads(alone.stdout)["answer"]
    assert done.stdout.decode().startswith(first + "\n")
    assert len(done.stdout) > len(first) + 2


def test_ctrl_c_ends_a_conversation_from_a_pipe(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "--chat", "-p", "One?", "-n", 7000, "--ignore-eos")
    _wait_for(process.stdout, b" ")
    code, _, _, err = _interrupted(process)
    assert (code, err) == (130, b"stopped\n")


def test_a_conversation_without_a_template(h2o: Run, bundle_copy: Path) -> None:
    manifest = json.loads((bundle_copy / "manifest.json").read_text())
    del manifest["files"]["chat_template.jinja"]
    for name in ("chat_template.jinja", "manifest.json"):
        (bundle_copy / name).unlink()
    (bundle_copy / "manifest.json").write_text(json.dumps(manifest))
    refused = h2o("run", bundle_copy, "--chat")
    assert refused.returncode == 1
    assert "has no chat template" in refused.stderr.decode()
    assert h2o("run", bundle_copy, "-p", "a", "-n", 1).returncode == 0


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, start: Start, *args: object) -> None:
        self._master, slave = pty.openpty()
        self.shown = b""

        def own_terminal() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = start(*args, stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal)
        os.close(slave)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, pattern: bytes, seconds: float = 20) -> bytes:
        """What is shown up to the end of `pattern` and was not asked for before."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown, re.DOTALL)):
            ready, _, _ = select.select([self._master], [], [], max(end - time.monotonic(), 0))
            assert ready, f"waited for {pattern!r}, saw {self.shown!r}"
            self.shown += os.read(self._master, 4096)
        part, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return part

    def ends(self) -> int:
        """The exit code; reads on, since a full terminal would hold the process up."""
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:  # Linux says so when the other side is closed
            pass
        os.close(self._master)
        return self.process.wait(20)


SUMMARY = rb"prompt ([\d,]+)(?: \(\+ ([\d,]+) cached\))? tokens[^\n]*\| (\w+) \|[^\n]*MiB"


def test_two_turns_on_a_terminal_share_the_cache(start_h2o: Start, tiny_bundle: Path) -> None:
    terminal = Terminal(start_h2o, "run", tiny_bundle, "--chat", "-n", 6, "--ignore-eos")
    terminal.until(rb"> ")
    terminal.type(b"What is a parser?\n")
    first = re.search(SUMMARY, terminal.until(SUMMARY), re.DOTALL)
    terminal.until(rb"> ")
    terminal.type(b"And a scanner?\n")
    second = re.search(SUMMARY, terminal.until(SUMMARY), re.DOTALL)
    terminal.until(rb"> ")
    terminal.type(b"\x04")
    assert terminal.ends() == 0
    assert first is not None
    assert second is not None
    assert first[2] is None
    # All of the first turn but its last token, which was said and not yet read.
    assert int(second[2]) == int(first[1]) + 6 - 1


def test_ctrl_c_on_a_terminal_stops_the_answer_only(start_h2o: Start, tiny_bundle: Path) -> None:
    terminal = Terminal(start_h2o, "run", tiny_bundle, "--chat", "-n", 7000, "--ignore-eos")
    terminal.until(rb"> ")
    terminal.type(b"What is a parser?\n")
    terminal.until(rb"parser\?\r\n.*\w{3}")
    terminal.type(b"\x03")
    first = re.search(SUMMARY, terminal.until(SUMMARY), re.DOTALL)
    terminal.until(rb"stopped.*> ")
    terminal.type(b"\x03")  # at the prompt it drops the line
    terminal.until(rb"/exit or Ctrl-D.*> ")
    terminal.type(b"Go on.\n")
    terminal.until(rb"Go on\.\r\n.*\w{3}")
    terminal.type(b"\x03")
    second = re.search(SUMMARY, terminal.until(SUMMARY), re.DOTALL)
    terminal.until(rb"stopped.*> ")
    terminal.type(b"/reset\n")
    terminal.until(rb"> ")
    terminal.type(b"/exit\n")
    assert terminal.ends() == 0
    assert first is not None
    assert second is not None
    assert (first[3], second[3]) == (b"cancelled", b"cancelled")
    assert int(second[2].replace(b",", b"")) > int(first[1])


def test_a_long_prompt_has_a_bar_on_a_terminal(start_h2o: Start, tiny_bundle: Path) -> None:
    text = _long_text(tiny_bundle.parent)
    flags = ("-f", text, "-c", 60000, "--prefill", "full", "-b", 128, "-n", 1)
    terminal = Terminal(start_h2o, "run", tiny_bundle, *flags)
    terminal.until(rb"prompt .*\d+/\d{5}")
    terminal.type(b"\x03")
    assert terminal.ends() == 130


def _long_text(folder: Path) -> Path:
    """A file with a prompt of over 40,000 tokens."""
    path = folder / "long.txt"
    if not path.exists():
        path.write_text((EXAMPLE / "heldout.txt").read_text(encoding="utf-8")[:150_000], encoding="utf-8")
    return path


def _wait_for(stream: Any, text: bytes) -> tuple[bytes, bytes]:
    """Read until `text` has come; returns it and all that was read."""
    seen = b""
    while text not in seen:
        ready, _, _ = select.select([stream], [], [], 30)
        assert ready, f"waited for {text!r}, saw {seen!r}"
        data = os.read(stream.fileno(), 4096)
        assert data, f"waited for {text!r}, saw {seen!r} and the end"
        seen += data
    return text, seen


def _interrupted(process: Popen[bytes]) -> tuple[int, float, bytes, bytes]:
    """Exit code, seconds until the exit, and the rest of both streams after SIGINT."""
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, time.monotonic() - begin, out, err
