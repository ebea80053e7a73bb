"""--load-cache and --save-cache: a long prompt that was read once need not be read again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from h2o_cli.help import Command, Group, grouped
from h2o_cli.output_path import OutputPath
from h2o_runtime.errors import Cancelled, ConfigError, InputError
from h2o_runtime.generator import Generator
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.saved import SavedSession, check_session_target, save_session

log = logging.getLogger(__name__)

PROMPT_PIECE = 1024  # tokens

_OPTIONS = (
    click.option(
        "--load-cache",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Continue a session that --save-cache wrote: only the new tokens of the prompt are read. Its "
        "prefill policy replaces the bundle's.",
    ),
    click.option(
        "--save-cache",
        type=OutputPath(),
        metavar="FILE",
        help="Write the session to a file at the end, also after Ctrl-C, SIGTERM or SIGHUP (a closed terminal). It "
        "may be the file of --load-cache.",
    ),
)


def saved_options(command: Command) -> Command:
    return grouped(Group.CACHE, *_OPTIONS)(command)


@dataclass(frozen=True)
class SavedCache:
    """loaded: a file whose header was read; save: the file to write in the end."""

    loaded: SavedSession | None
    save: Path | None

    @classmethod
    def of(cls, flags: dict[str, Any]) -> SavedCache:
        """Takes the options out of `flags`. Runs before a model is loaded: raises InputError or
        OutputError.
        """
        load, save = flags.pop("load_cache"), flags.pop("save_cache")
        if save is not None:
            check_session_target(save)
        with _advice():
            return cls(SavedSession.open(load) if load is not None else None, save)

    def default(self, bundle: PrefillPolicy[Any]) -> PrefillPolicy[Any]:
        """The policy that --prefill changes: the loaded session's, otherwise the bundle's."""
        return bundle if self.loaded is None else self.loaded.shape.policy

    @property
    def prompt_piece(self) -> int | None:
        """A prompt is read in pieces if a signal must not lose what was read of it."""
        return None if self.save is None else PROMPT_PIECE

    @contextmanager
    def around(self, generator: Generator, policy: PrefillPolicy[Any]) -> Iterator[None]:
        """Load before, save after, also if a signal stopped the work; after an error nothing is saved.

        Raises ConfigError before the work.
        """
        spec = generator.session.spec
        if self.save is not None and spec.forgets(spec.context):
            raise ConfigError(
                f"--save-cache writes whole sessions, and this cache evicts {spec.forgets(spec.context):,} of a "
                f"context of {spec.context:,} tokens: use another --cache, or lower --ctx-size",
                field="save_cache",
            )
        if self.loaded is not None:
            with _advice():
                self.loaded.load_into(generator.session, policy)
        try:
            yield
        except Cancelled:
            self._save(generator, stopped=True)
            raise
        self._save(generator)

    def _save(self, generator: Generator, stopped: bool = False) -> None:
        """A stopped command does not replace what it loaded by less."""
        loaded = self.loaded.shape.length if self.loaded is not None else 0
        if self.save is None or (stopped and generator.length <= loaded):
            return
        save_session(generator.session, self.save)
        size = self.save.stat().st_size
        log.info("saved %d tokens, %.1f MiB: %s", generator.length, size / 2**20, self.save)


@contextmanager
def _advice() -> Iterator[None]:
    """What helps if a session cannot be loaded. A server needs none: it reads the conversation again."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{error}; without --load-cache the prompt is read again") from error
