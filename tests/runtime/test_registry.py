"""What other packages register: a class that is fine is an entry, one that is broken costs a warning."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.components.registry import Registry
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.policies.prefill.h2o import H2O, ColumnSum

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar, Literal

from h2o_runtime.caches import Contiguous
from h2o_runtime.components.options import option
from h2o_runtime.policies.decode import FullDecode
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.policies.prefill.h2o import ColumnSum
from h2o_runtime.policies.prefill.h2o.policy import score_rule


class NoPolicy:
    name = title = "no policy"


@dataclass(frozen=True)
class Clash(Full):
    """Its name is taken."""


@dataclass(frozen=True)
class Abstract(PrefillPolicy[None]):
    name: ClassVar[str] = "abstract"
    title: ClassVar[str] = "abstract"


@dataclass(frozen=True)
class BadDefault(Full):
    name: ClassVar[str] = "default"
    rows: int = option(0, "Rows.", least=1)


@dataclass(frozen=True)
class NoDefault(Full):
    name: ClassVar[str] = "none"
    rows: int = option(None, "Rows.")


@dataclass(frozen=True)
class Choice(Full):
    name: ClassVar[str] = "choice"
    policy: int = option(1, "The setting that chooses.")


@dataclass(frozen=True)
class Good(Full):
    name: ClassVar[str] = "good"
    extra: int = option(1, "One more.")


@dataclass(frozen=True)
class ClashScore(ColumnSum):
    """Its name is taken."""


@dataclass(frozen=True)
class AnyScore(ColumnSum):
    score: str = score_rule("any")


@dataclass(frozen=True)
class GoodScore(ColumnSum):
    score: Literal["good"] = score_rule("good")
    good: int = option(1, "How good.")


@dataclass(frozen=True)
class GoodDecode(FullDecode):
    name: ClassVar[str] = "good"


@dataclass(frozen=True)
class GoodCache(Contiguous):
    name: ClassVar[str] = "good"
'''

BROKEN = {
    "nowhere:Policy": "ModuleNotFoundError: No module named 'nowhere'",
    "strange:Missing": "AttributeError: module 'strange' has no attribute 'Missing'",
    "strange:NoPolicy": "is no subclass of ",
}
BROKEN_PREFILL = BROKEN | {
    "strange:Clash": "there is already a policy named 'full'",
    "strange:Abstract": "abstract",
    "strange:BadDefault": "rows must be at least 1, but is 0",
    "strange:NoDefault": "the option rows needs a number, a string or a truth value as its default",
    "strange:Choice": "policy is the name of the choice itself",
}
BROKEN_SCORES = BROKEN | {
    "strange:AnyScore": "AnyScore.score must be a Literal of its one name",
    "strange:ClashScore": "there is already a score named 'colsum'",
}
GROUPS = {
    "h2o_edge.score_rules": (*BROKEN_SCORES, "strange:GoodScore"),
    "h2o_edge.prefill_policies": (*BROKEN_PREFILL, "strange:Good"),
    "h2o_edge.decode_policies": (*BROKEN, "strange:GoodDecode"),
    "h2o_edge.caches": (*BROKEN, "strange:GoodCache"),
}


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that registers what is broken and what is not."""
    about = tmp_path / "strange-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    lines = []
    for group, points in GROUPS.items():
        lines += [f"[{group}]", *(f"{point.partition(':')[2].lower()} = {point}" for point in points)]
    (about / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "strange.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "builtin", "base", "field", "broken"),
    [
        ("h2o_edge.prefill_policies", Full, PrefillPolicy, "policy", BROKEN_PREFILL),
        ("h2o_edge.decode_policies", FullDecode, DecodePolicy, "name", BROKEN),
        ("h2o_edge.caches", Contiguous, Cache, "name", BROKEN),
    ],
)
def test_what_is_broken_is_left_out_with_a_warning_that_names_it(
    strange: Path,
    caplog: pytest.LogCaptureFixture,
    group: str,
    builtin: type,
    base: type,
    field: str,
    broken: dict[str, str],
) -> None:
    registry = Registry(builtin, base=base, field=field, group=group)
    assert not caplog.records  # nothing is loaded before it is asked for
    with caplog.at_level(logging.WARNING):
        assert registry.names == (builtin.name, "good")  # type: ignore[attr-defined]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == len(broken)
    for (point, reason), warning in zip(broken.items(), warnings, strict=True):
        assert warning.startswith(f"{group}: the entry point ")
        assert point in warning
        assert reason in warning


def test_a_score_rule_that_is_broken_is_left_out(strange: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry: Registry[H2O[Any]] = Registry(
        ColumnSum, base=H2O, field="score", group="h2o_edge.score_rules", name="score", title="score_title"
    )
    with caplog.at_level(logging.WARNING):
        assert registry.names == ("colsum", "good")
    assert registry.make({"score": "good", "good": 2}) == registry["good"](good=2)  # type: ignore[call-arg]
    for (point, reason), record in zip(BROKEN_SCORES.items(), caplog.records, strict=True):
        assert point in record.getMessage()
        assert reason in record.getMessage()


def run(strange: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(strange)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_importing_loads_no_entry_point(strange: Path) -> None:
    modules = ("h2o_runtime.generator", "h2o_export.policies", "h2o_cli.eval.policies")
    done = run(strange, "-c", f"import sys, {', '.join(modules)}; assert 'strange' not in sys.modules")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_works_beside_what_is_broken(strange: Path) -> None:
    done = run(strange, "-m", "h2o_cli.run", "--prefill", "help")
    assert done.returncode == 0
    assert '--prefill "good"' in done.stdout
    assert '--prefill "h2o score=good"' in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(BROKEN_PREFILL) + len(BROKEN_SCORES)
    assert all("the entry point" in line for line in lines)
