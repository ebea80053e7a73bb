"""The folder of a report: the measurements so far, so that a stopped run can continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h2o_cli.eval.values import Value, from_csv, to_csv
from h2o_runtime.errors import InputError, OutputError
from h2o_runtime.files.inputs import read_input
from h2o_runtime.files.outputs import replace_file

RUN, ROWS, TOKENS, PAGE = "run.json", "rows.csv", "tokens.json", "report.html"


@dataclass
class RunFolder:
    """identity  what all rows have in common, of JSON's kinds
    values  all rows so far
    tokens  what the token view shows; see `TokenView`
    """

    path: Path
    identity: dict[str, Any]
    values: list[Value] = field(default_factory=list)
    tokens: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, identity: dict[str, Any], resume: bool) -> RunFolder:
        """Begin a run, or continue the existing one.

        identity: what must be equal for rows to belong together, in JSON types. Raises OutputError if the
        folder has another run, or other files.
        """
        identity = json.loads(json.dumps(identity))
        try:
            known = sorted(entry.name for entry in path.iterdir()) if path.exists() else []
        except OSError as error:
            raise OutputError(f"{path}: cannot be read: {error.strerror}") from error
        if RUN in known:
            if not resume:
                raise OutputError(
                    f"{path}: has a run already: give --resume to go on with it, or another folder"
                )
            there = cls.read(path)
            there.check_identity(identity)
            return there
        if known:
            raise OutputError(f"{path}: is not empty and has no run of h2o-eval: name another folder")
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path}: cannot be made: {error.strerror}") from error
        replace_file(path / RUN, json.dumps(identity, indent=2, ensure_ascii=False) + "\n")
        return cls(path, identity)

    @classmethod
    def read(cls, path: Path) -> RunFolder:
        """The run that is there. Raises OutputError where there is none."""
        try:
            identity = json.loads(read_input(path / RUN))
            rows, tokens = path / ROWS, path / TOKENS
            values = from_csv(read_input(rows).decode()) if rows.exists() else []
            seen = json.loads(read_input(tokens)) if tokens.exists() else {}
            for name, found in ((RUN, identity), (TOKENS, seen)):
                if not isinstance(found, dict):
                    raise ValueError(f"{name} holds no object")
            if not isinstance(seen.get("seen", {}), dict):
                raise ValueError(f"{TOKENS} does not say which contestant saw what")
        except (InputError, ValueError, RecursionError) as error:
            raise OutputError(f"{path}: its run cannot be read ({error}): name another folder") from error
        return cls(path, identity, values, seen)

    def check_identity(self, identity: dict[str, Any]) -> None:
        """Raises OutputError where this run's rows do not go together with those of another."""
        differing = [name for name in identity if self.identity.get(name) != identity[name]]
        if differing:
            raise OutputError(
                f"{self.path}: is a run with another {differing[0]}: name another folder, or give its flags again"
            )

    def check(self, settings: dict[str, str]) -> None:
        """Raises OutputError if a contestant of this name was measured with other settings."""
        for value in self.values:
            if settings.get(value.contestant, value.settings) != value.settings:
                raise OutputError(
                    f"{self.path}: {value.contestant} was measured with {value.settings}, and is now "
                    f"{settings[value.contestant]}: name another folder, or give its flags again"
                )

    @property
    def done(self) -> set[str]:
        """Names of jobs with rows in this folder."""
        return {value.job for value in self.values}

    def add(self, values: Sequence[Value]) -> None:
        """A job's rows, all of them or none."""
        self.values += values
        replace_file(self.path / ROWS, to_csv(self.values))

    def keep_tokens(self) -> None:
        replace_file(self.path / TOKENS, json.dumps(self.tokens, ensure_ascii=False))

    def write_page(self, page: str) -> Path:
        replace_file(self.path / PAGE, page)
        return self.path / PAGE
