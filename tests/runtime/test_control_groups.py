"""A container's limits, as Linux writes them in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from h2o_runtime import control_groups, process

MIB = 1 << 20
FREE = 9 << 30  # of the host


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {FREE >> 10} kB\n")
    monkeypatch.setattr(process, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(control_groups, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(control_groups, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


def memory(limit: object, used: int, cached: int) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {cached * MIB}\nactive_file 5\n"
    return {"memory__max": f"{limit}\n", "memory__current": f"{used * MIB}\n", "memory__stat": stat}


def test_a_machine_without_groups() -> None:
    assert process.available_bytes() == FREE
    assert process.default_threads() == 8


@pytest.mark.parametrize("path", ["/", "/docker/0a1b", "/../other"], ids=["own", "the host's", "outside"])
def test_a_container(tmp_path: Path, path: str) -> None:
    (tmp_path / "groups").write_text(f"0::{path}\n")
    write(tmp_path / "mount", cpu__max="150000 100000\n", **memory(512 * MIB, used=112, cached=100))
    assert process.available_bytes() == 500 * MIB
    assert process.default_threads() == 2


def test_the_narrowest_of_nested_groups_counts(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("0::/service/own\n")
    write(tmp_path / "mount" / "service" / "own", cpu__max="max 100000\n", **memory("max", 100, 0))
    write(tmp_path / "mount" / "service", cpu__max="50000 100000\n", **memory(256 * MIB, 300, 0))
    write(tmp_path / "mount", **memory(800 * MIB, 300, 0))
    assert process.available_bytes() == 0
    assert process.default_threads() == 1


def test_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("5:cpuacct,cpu:/a\n4:memory:/a\n1:name=systemd:/a\n0::/\n")
    unlimited = {"memory__limit_in_bytes": "9223372036854771712\n", "memory__usage_in_bytes": "7\n"}
    write(tmp_path / "mount" / "memory", **unlimited)
    write(tmp_path / "mount" / "cpu", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert (process.available_bytes(), process.default_threads()) == (FREE, 8)
    usage = {"memory__usage_in_bytes": f"{400 * MIB}\n", "memory__stat": f"total_inactive_file {MIB}\n"}
    write(tmp_path / "mount" / "memory" / "a", memory__limit_in_bytes=f"{512 * MIB}\n", **usage)
    write(tmp_path / "mount" / "cpu" / "a", cpu__cfs_quota_us="300000\n", cpu__cfs_period_us="100000\n")
    assert (process.available_bytes(), process.default_threads()) == (113 * MIB, 3)
