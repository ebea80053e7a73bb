"""Files of a bundle that is loaded. They stay open, so another bundle may take its folder, or nothing.

Weights are mapped: whoever writes into their files changes the model. So `check` follows every use. Until then lost
pages of a file that was cut off read as zeros (`h2o_plugins`): otherwise the system would end the process.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from h2o_plugins import cpu_kernels
from h2o_runtime.bundles.manifest import unreadable
from h2o_runtime.errors import BundleChangedError

_REPLACING = "restart the server or the command; to replace a bundle, write a new folder and rename it"


class HeldFiles:
    """Files of `folder` by their names there, and what they were when they were opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, tuple[int, int]]] = {}  # descriptors
        self._lost: dict[str, Any] = {}  # what makes lost pages of their folders read as zeros
        weakref.finalize(self, _close, self._files, self._lost)

    def hold(self, names: Iterable[str]) -> None:
        """Raises BundleError for a file that cannot be opened."""
        for name in set(names) - self._files.keys():
            path = self._folder / name
            try:
                file = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise unreadable(path, error) from error
            self._files[name] = file, _stamp(os.fstat(file))
            place = os.path.dirname(os.path.realpath(path))
            if (kernels := cpu_kernels()) and place not in self._lost:
                self._lost[place] = kernels.LostPages(place)

    def path(self, name: str) -> Path:
        """Where processes of this user read the file as long as it is held, whatever its own path leads to."""
        return Path(f"/proc/{os.getpid()}/fd/{self._files[name][0]}")

    @property
    def names(self) -> Iterable[str]:
        return tuple(self._files)

    def check(self, names: Iterable[str]) -> None:
        """Raises BundleChangedError if one of these files was written into."""
        for name in names:
            file, stamp = self._files[name]
            if _stamp(os.fstat(file)) != stamp:
                raise BundleChangedError(
                    f"{self._folder / name}: was written into while it was in use: {_REPLACING}"
                )

    def check_places(self, names: Iterable[str]) -> None:
        """As `check`, and if a path does not lead to the file any more."""
        self.check(names)
        for name in names:
            try:
                there = os.path.samestat(os.stat(self._folder / name), os.fstat(self._files[name][0]))
            except OSError:
                there = False
            if not there:
                raise BundleChangedError(
                    f"{self._folder / name}: was replaced or removed before it was read: {_REPLACING}"
                )


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _close(files: dict[str, tuple[int, tuple[int, int]]], lost: dict[str, Any]) -> None:
    """Also at the end of the process, where nanobind reports objects that are left."""
    for file, _ in files.values():
        os.close(file)
    lost.clear()
