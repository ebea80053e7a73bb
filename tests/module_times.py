"""A plugin of pytest that says what each module's tests took, the longest first: pytest -p tests.module_times

Seconds are of the workers, setup and teardown included, so that they add up to more than the run took. Those of
processors include programs that a test started and waited for. They hardly grow where others use the machine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

SHOWN = 40
PROCESSORS = "seconds of processors"


class _Processors:
    """What this process and its children that have ended took."""

    def __init__(self) -> None:
        self._counted = 0.0

    def since_last(self) -> float:
        before, self._counted = self._counted, sum(os.times()[:4])
        return self._counted - before


_processors = _Processors()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _processors.since_last()  # what came before, such as collection, is no test's


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report.user_properties.append((PROCESSORS, _processors.since_last()))
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    clock: Counter[str] = Counter()
    processors: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                module = report.nodeid.partition("::")[0]
                clock[module] += report.duration
                processors[module] += sum(n for name, n in report.user_properties if name == PROCESSORS)
    terminalreporter.section("seconds by module: of processors, of the clock")
    for module, spent in processors.most_common(SHOWN):
        terminalreporter.write_line(f"{spent:8.1f} {clock[module]:8.1f}  {module}")
    terminalreporter.write_line(f"{processors.total():8.1f} {clock.total():8.1f}  all {len(clock)}")
