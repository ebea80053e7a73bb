"""A plugin of pytest that says how long each module's tests took, longest first: pytest -p tests.module_times

Seconds are of the workers, setup and teardown included, so that they add up to more than the run took.
"""

from __future__ import annotations

from collections import Counter

import pytest

SHOWN = 40


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds by module")
    for module, spent in seconds.most_common(SHOWN):
        terminalreporter.write_line(f"{spent:8.1f}  {module}")
    terminalreporter.write_line(f"{sum(seconds.values()):8.1f}  all {len(seconds)}")
