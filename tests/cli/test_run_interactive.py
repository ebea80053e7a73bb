"""h2o-run while somebody watches: Ctrl-C, readers that leave, conversations on pipes and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import time
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Run, Start, read_until, work_for
from tests.conftest import EXAMPLE

from h2o_runtime.sessions.saved import SavedSession

OWN_TERMINAL = "import fcntl, os, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
PROMPT = "The module defines a class that reads the"
pytestmark = pytest.mark.timeout(600)


# How it stops


def test_ctrl_c_while_answering_keeps_what_there_is(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 8000, "--ignore-eos")
    first = read_until(process.stdout, b" ").string
    code, rest, err = _interrupted(process)
    assert code == 130
    assert (first + rest).endswith(b"\n")
    assert err == b"stopped\n"


def test_ctrl_c_with_json_tells_what_there_is(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 8000, "--ignore-eos", "--json", "-v")
    read_until(process.stderr, b"prompt of")
    work_for(process, 0.5)
    code, out, _ = _interrupted(process)
    document = json.loads(out)
    assert (code, document["finish_reason"]) == (130, "cancelled")
    assert 0 < document["timings"]["predicted_n"] < 8000


def test_a_reader_that_leaves_is_no_error(start_h2o: Start, tiny_bundle: Path) -> None:
    process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 4000, "--ignore-eos")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(300) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_output_that_cannot_be_written(start_h2o: Start, tiny_bundle: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = start_h2o("run", tiny_bundle, "-p", PROMPT, "-n", 4, stdout=full)
        _, err = process.communicate(timeout=300)
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


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, start: Start, *args: object, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.shown = b""
        code = f"{OWN_TERMINAL}; os.environ.update({environment!r})"
        self.process = start(*args, terminal=slave, code=code)
        os.close(slave)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def until(self, pattern: bytes) -> bytes:
        """What is shown up to the end of `pattern` and was not asked for before."""
        assert self.shows(pattern, 300), f"waited for {pattern!r}, saw {self.shown!r}"
        found = re.search(pattern, self.shown, re.DOTALL)
        assert found is not None
        part, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return part

    def shows(self, pattern: bytes, seconds: float) -> bool:
        """Whether `pattern` comes within so long a time."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.shown, re.DOTALL):
            if not select.select([self._master], [], [], max(end - time.monotonic(), 0))[0]:
                return False
            self.shown += os.read(self._master, 4096)
        return True

    def close(self) -> None:
        """The user closes its window."""
        os.close(self._master)

    def ends(self) -> int:
        """The exit code; reads on, since a full terminal would hold the process up."""
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:  # Linux says so when the other side is closed
            pass
        self.close()
        return self.process.wait(300)


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
    while not terminal.shows(rb"/exit or Ctrl-D", 1):  # readline shows its prompt before it listens
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


@pytest.mark.parametrize("where", ["answering", "waiting"])
def test_a_closed_terminal_saves_the_conversation(
    start_h2o: Start, tiny_bundle: Path, tmp_path: Path, where: str
) -> None:
    """Whatever is written to it from then on fails."""
    file, length = tmp_path / "session", 7000 if where == "answering" else 4
    flags = ("--chat", "-n", length, "--ignore-eos", "--save-cache", file)
    terminal = Terminal(start_h2o, "run", tiny_bundle, *flags)
    terminal.until(rb"> ")
    terminal.type(b"What is a parser?\n")
    terminal.until(rb"parser\?\r\n.*\w{3}" if where == "answering" else SUMMARY + rb".*> ")
    terminal.close()
    assert terminal.process.wait(300) == 129
    assert len(SavedSession.open(file).tokens) > 8


def test_a_signal_while_a_piped_conversation_waits_saves_it(
    start_h2o: Start, tiny_bundle: Path, tmp_path: Path
) -> None:
    file, (given, typed) = tmp_path / "session", os.pipe()
    flags = ("--chat", "-n", 4, "--ignore-eos", "-p", "One?", "--save-cache", file)
    process = start_h2o("run", tiny_bundle, *flags, stdin=given)
    read_until(process.stdout, b"\n")
    time.sleep(0.3)  # until it waits: nothing shows it
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    assert len(SavedSession.open(file).tokens) > 4
    os.close(typed)
    os.close(given)


def test_reset_is_advised_where_it_would_drop_something(start_h2o: Start, tiny_bundle: Path) -> None:
    terminal = Terminal(start_h2o, "run", tiny_bundle, "--chat", "-n", 4, "-c", 64, "-p", "word " * 80)
    assert b"; /reset begins anew" not in terminal.until(
        rb"error: the prompt has .*shorten the prompt[^>]*> "
    )
    terminal.type(b"Hello.\n")
    terminal.until(SUMMARY)
    terminal.until(rb"> ")
    terminal.type(b"word " * 80 + b"\n")
    terminal.until(rb"error: the prompt has .*; /reset begins anew[^>]*> ")
    terminal.type(b"\x04")
    assert terminal.ends() == 0


def test_a_long_prompt_has_a_bar_on_a_terminal(start_h2o: Start, tiny_bundle: Path) -> None:
    text = _long_text(tiny_bundle.parent)
    flags = ("-f", text, "-c", 60000, "--prefill", "full", "-b", 128, "-n", 1)
    terminal = Terminal(start_h2o, "run", tiny_bundle, *flags)
    terminal.until(rb"prompt .*\d+/\d{5}")
    terminal.type(b"\x03")
    assert terminal.ends() == 130


def test_no_escapes_where_none_are_wanted(start_h2o: Start, tiny_bundle: Path) -> None:
    asked = {"NO_COLOR": "1", "TERM": "xterm-256color"}
    terminal = Terminal(start_h2o, "run", tiny_bundle, "--chat", "-n", 4, "-v", **asked)
    shown = terminal.until(rb"> ")
    terminal.type(b"What is a parser?\n")
    shown += terminal.until(SUMMARY) + terminal.until(rb"> ")
    terminal.type(b"/exit\n")
    shown += terminal.until(rb"/exit\r\n")
    assert terminal.ends() == 0
    flags = ("-f", _long_text(tiny_bundle.parent), "-c", 60000, "--prefill", "full", "-b", 128, "-n", 1, "-v")
    terminal = Terminal(start_h2o, "run", tiny_bundle, *flags, **asked)
    shown += terminal.until(rb"prompt of")
    work_for(terminal.process, 1)  # a bar would come after less
    terminal.type(b"\x03")
    shown += terminal.until(rb"stopped")
    assert terminal.ends() == 130
    assert b"\x1b" not in shown


def test_escapes_where_a_terminal_has_colours(start_h2o: Start, tiny_bundle: Path) -> None:
    asked = {"TERM": "xterm-256color", "NO_COLOR": ""}
    terminal = Terminal(start_h2o, "run", tiny_bundle, "-p", "a", "-n", 2, **asked)
    assert b"\x1b" in terminal.until(SUMMARY)
    assert terminal.ends() == 0


def _long_text(folder: Path) -> Path:
    """A file with a prompt of over 40,000 tokens."""
    path = folder / "long.txt"
    if not path.exists():
        path.write_text((EXAMPLE / "heldout.txt").read_text(encoding="utf-8")[:150_000], encoding="utf-8")
    return path


def _interrupted(process: Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Exit code, and the rest of both streams after SIGINT."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err
