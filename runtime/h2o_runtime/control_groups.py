"""The limits of a container, or of a service: Linux's control groups.

A group's limits hold beside those of all groups that contain it. Inside a container the path of its own group is
often the host's, and only the root of the mounted folder exists: that root is then the container's group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")  # a line each: number:controllers:path, without controllers in version 2
_MOUNT = Path("/sys/fs/cgroup")


def memory_room() -> int | None:
    """Bytes that this process may still use; None without a limit. The cache of files that can go is free."""
    return min((max(0, room) for room in _memory_rooms()), default=None)


def core_quota() -> float | None:
    """Processor seconds per second that this process may use; None without a limit."""
    return min(_core_quotas(), default=None)


def _memory_rooms() -> Iterator[int]:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for version, group in _own_groups("memory"):
        limit_name, used_name, cache_name = names[version]
        limit, used = _numbers(group / limit_name), _numbers(group / used_name)
        if limit and used:
            yield limit[0] - used[0] + _statistic(group / "memory.stat", cache_name)


def _core_quotas() -> Iterator[float]:
    for version, group in _own_groups("cpu"):
        if version == 2:
            found = _numbers(group / "cpu.max")
        else:
            found = _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(found) == 2 and min(found) > 0:  # version 1 has -1 for none
            yield found[0] / found[1]


def _own_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Version and folder of this process's group, then of those that contain it."""
    for line in _lines(_GROUPS):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _MOUNT / controller if controllers else _MOUNT
        group = PurePosixPath(path.lstrip("/"))
        for each in (group, *group.parents):
            yield (1 if controllers else 2), root / each


def _numbers(file: Path) -> list[int]:
    """Those of the file's first line, none where it says "max"."""
    words = " ".join(_lines(file)[:1]).split()
    return [] if "max" in words else [int(word) for word in words]


def _statistic(file: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(file) if line.startswith(f"{name} ")), 0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
