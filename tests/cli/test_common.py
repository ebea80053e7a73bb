"""What every command does with interrupts, errors that users cause, and defects."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator

import click
import pytest

from h2o_cli import usage
from h2o_cli.common import NotNegative
from h2o_cli.stopping import Stop
from h2o_cli.usage import Exit
from h2o_runtime.errors import BackendError, ConfigError, H2OError, OutOfMemoryError
from h2o_runtime.ort.cuda import import_onnxruntime
from h2o_runtime.process import STOPPING

CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}  # as shells report them


def run(work: Callable[[], object]) -> object:
    """What it returns, as a command's own code."""
    return click.command(cls=usage.Command)(work).main([], prog_name="h2o-toy", standalone_mode=False)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """No signal is ignored, as it is where pytest runs in the background or under nohup."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _import_that_swallows(number: signal.Signals) -> None:
    """What native modules do when an interrupt comes while they are imported."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        raise ImportError("import numpy failed") from None


@pytest.mark.parametrize("number", CODES)
def test_an_interrupt_that_a_library_turned_into_an_error_still_is_one(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run(lambda: _import_that_swallows(number))
    assert end.value.code == CODES[number]
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("number", CODES)
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    """As Ctrl-C in the background of a script, and SIGHUP under nohup."""
    signal.signal(number, signal.SIG_IGN)
    assert run(lambda: signal.raise_signal(number) or "went on") == "went on"


def test_a_command_leaves_the_handlers_as_they_were() -> None:
    run(lambda: None)
    assert {signal.getsignal(number) for number in STOPPING} == {signal.default_int_handler}


@pytest.mark.parametrize("first", CODES)
def test_a_second_signal_ends_the_wait_for_the_first(first: signal.Signals) -> None:
    """But a terminal that is closed sends SIGHUP several times: what is being saved then goes on."""
    happened = []

    def work() -> None:
        stop = Stop.of_command()
        with stop.noted():
            signal.raise_signal(first)
            happened.append(stop.came())
            signal.raise_signal(signal.SIGHUP)
            happened.append("saved")
            signal.raise_signal(signal.SIGTERM)
            happened.append("not reached")

    with pytest.raises(SystemExit) as end:
        run(work)
    assert (end.value.code, happened) == (CODES[first], [True, "saved"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (H2OError("no such graph"), Exit.ERROR, "error: no such graph\n"),
        (OSError(28, "No space left on device", "out"), Exit.ERROR, "error: out: No space left on device\n"),
        (MemoryError(), Exit.ERROR, f"error: {OutOfMemoryError('this command gets no more')}\n"),
        (
            ValueError("std::bad_alloc"),
            Exit.ERROR,
            f"error: {OutOfMemoryError('this command gets no more')}\n",
        ),
    ],
)
def test_what_a_user_can_cause_is_one_sentence(
    error: Exception, code: Exit, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        run(fail)
    assert (end.value.code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("heavy must be at least 0", field="heavy"), "--h2o-heavy must be at least 0"),
        (H2OError("x: lower `context`, or use `cache=paged`"), "x: lower --ctx-size, or use --cache paged"),
        (ConfigError("`elsewhere=1` and heavy words stay"), "`elsewhere=1` and heavy words stay"),
        (ConfigError("heavyweight", field="heavy"), "heavyweight"),
    ],
)
def test_arguments_of_the_library_are_told_as_this_commands_flags(
    error: H2OError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("h2o-toy", cls=usage.Command)
    @click.option("-c", "--ctx-size", "context")
    @click.option("--cache")
    @click.option("--h2o-heavy", "heavy")
    def command(**flags: str) -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        command.main([], prog_name="h2o-toy")
    misused = isinstance(error, ConfigError)
    assert end.value.code == (Exit.USAGE if misused else Exit.ERROR)
    helps = "help: h2o-toy --help\n" if misused else ""
    assert capsys.readouterr().err == f"error: {told}\n{helps}"


def test_a_defect_keeps_its_traceback() -> None:
    def fail() -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        run(fail)


class Stubborn:
    """Its destructor is where the interrupt comes."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        Stubborn()
        for _ in range(500):
            time.sleep(0.01)

    with pytest.raises(SystemExit) as end:
        run(work)
    assert end.value.code == 130
    assert capsys.readouterr().err == "stopped\n"


def test_other_errors_of_destructors_are_still_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ZeroDivisionError("in a destructor")

    mentioned: list[type] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: mentioned.append(lost.exc_type))
    run(Broken)
    assert mentioned == [ZeroDivisionError]


@pytest.mark.parametrize("value", ["nan", "-0.1", "-inf", "x"])
def test_a_limit_that_nothing_reaches_is_refused(value: str) -> None:
    with pytest.raises(click.BadParameter):
        NotNegative().convert(value, None, None)
    assert NotNegative().convert("0.5", None, None) == 0.5


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "libonnx.so: failed to map segment from shared object",
            "out of memory: a library cannot be loaded;",
        ),
        ("libonnx.so: cannot allocate memory in static TLS block", "out of memory: a library cannot"),
        ("undefined symbol: ort", "ONNX Runtime is installed, but cannot be loaded: undefined symbol: ort"),
    ],
)
def test_a_library_that_does_not_load_is_not_told_to_be_missing(
    said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "onnxruntime":
                raise ImportError(said)

    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Failing(), *sys.meta_path])
    with pytest.raises(BackendError, match=re.escape(told)):
        import_onnxruntime()
