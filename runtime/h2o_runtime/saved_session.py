"""A session in a file: tokens, keys, values and what policies remember of them, to go on from another day.

The file is an npz as NumPy writes it, arrays one after the other and not compressed, each with its checksum;
`about` says what they are of.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from h2o_runtime.caches import Rows
from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError, InputError, OutputError
from h2o_runtime.generator import Generator
from h2o_runtime.reuse import Provenance, same_arithmetic
from h2o_runtime.session import Session

FORMAT = 1
ABOUT = "about"
MOST_ABOUT = 1 << 20  # bytes
PIECE = 1 << 20  # bytes read at once


class _About(BaseModel):
    """bundle: its identity. origin: a Provenance, its configuration apart. state: the prefill policy's numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    bundle: str
    prefill: dict[str, Any]
    origin: dict[str, Any]
    decode: dict[str, Any]
    length: int = Field(gt=0)
    logits: bool
    state: dict[str, int]


def save_session(generator: Generator, path: Path) -> None:
    """Write the generator's session; a file of that name gives way once the new one is whole.

    Raises InputError where there is nothing to save, ConfigError for a policy whose state cannot be saved and
    OutputError.
    """
    about = _about(generator)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as file:
            for name, array in _contents(generator, about):
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, array, version=(1, 0), allow_pickle=False)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _about(generator: Generator) -> _About:
    session = generator.session
    config = session.origin.config
    if config is None or not session.length:
        raise InputError("there is nothing to save: no prompt has been read")
    kept = config.algorithm.kept(session.prefill_state, session.length)
    if kept is None:
        raise ConfigError(
            f"policy {config.algorithm.name} cannot save what it remembers of a prompt: use another",
            field="policy",
        )
    origin = session.origin
    return _About(
        format=FORMAT,
        bundle=generator.bundle.manifest.identity,
        prefill=asdict(config),
        origin={one.name: getattr(origin, one.name) for one in fields(origin) if one.name != "config"},
        decode=_decode(generator),
        length=session.length,
        logits=session.logits is not None,
        state=dict(kept.numbers),
    )


def _decode(generator: Generator) -> dict[str, Any]:
    return {"name": generator.decoding.name, **asdict(generator.decoding)}


def _contents(generator: Generator, about: _About) -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays of the file by name, one at a time on the host."""
    yield ABOUT, np.frombuffer(about.model_dump_json().encode(), np.uint8)
    session, download = generator.session, generator.device.download
    for name, array in _of_session(session, about).items():
        yield name, array
    for layer in range(generator.model.layers):
        with generator.store.open(layer) as cache:
            for name, tensor in zip("kv", cache.view(about.length).as_they_lie(), strict=True):
                yield f"{name}{layer:03}", download(tensor[: about.length])
    assert session.origin.config is not None
    kept = session.origin.config.algorithm.kept(session.prefill_state, session.length)
    for name, tensor in kept.arrays.items() if kept else ():
        yield f"state-{name}", download(tensor)


def _of_session(session: Session, about: _About) -> dict[str, NDArray[Any]]:
    """Views of what is on the host."""
    arrays: dict[str, NDArray[Any]] = {
        name: getattr(session, name)[: about.length] for name in ("tokens", "positions", "generated")
    }
    return arrays | ({"logits": session.logits} if about.logits and session.logits is not None else {})


@dataclass(frozen=True)
class SavedSession:
    """A file of `save_session` that was looked into; `load_into` reads its arrays."""

    path: Path
    config: PrefillConfig
    about: _About

    @classmethod
    def open(cls, path: Path) -> SavedSession:
        """Raises InputError where it cannot be read or is no saved session."""
        with _opened(path) as file:
            with file.open(f"{ABOUT}.npy") as member:
                shape, dtype = _header(member)
                if dtype != np.uint8 or len(shape) != 1 or shape[0] > MOST_ABOUT:
                    raise ValueError("not what it says of itself")
                about = _About.model_validate_json(member.read())
            if about.format != FORMAT:
                raise InputError(
                    f"{path}: saved in format {about.format}; this version reads format {FORMAT}"
                )
            try:
                config = PrefillConfig(**about.prefill)
            except (TypeError, ConfigError) as error:
                raise InputError(
                    f"{path}: saved with settings that this version does not have; run the prompt again"
                ) from error
        return cls(path, config, about)

    def load_into(self, generator: Generator, config: PrefillConfig) -> None:
        """Make it the session of a generator that goes on under `config`.

        Raises InputError for a damaged file, and where the file was saved by another bundle, under other settings
        or holds more than the context; the generator's session is empty then.
        """
        self._check(generator, config)
        generator.reset()
        generator.prepare_state(self.config)
        try:
            with _opened(self.path) as file:
                self._read_session(generator.session, generator.model.vocab_size, file)
                self._read_layers(generator, file)
                self._read_state(generator, file)
        except BaseException:
            generator.reset()
            raise

    def _check(self, generator: Generator, config: PrefillConfig) -> None:
        path, about = self.path, self.about
        if about.bundle != generator.bundle.manifest.identity:
            raise InputError(f"{path}: saved with another bundle than {generator.bundle.folder}")
        if not same_arithmetic(self.config, config):
            raise InputError(
                f"{path}: saved under {_in_words(self.config)}, and this run asks for {_in_words(config)}: give "
                "the same settings, or run the prompt again"
            )
        if about.decode != _decode(generator):
            raise InputError(
                f"{path}: answers in it were decoded under {about.decode}, and this run asks for "
                f"{_decode(generator)}: give the same settings, or run the prompt again"
            )
        if about.length > generator.context:
            raise InputError(
                f"{path}: it holds {about.length:,} tokens, more than the context of {generator.context:,}: give a "
                f"context of {about.length:,} or more"
            )

    def _read_session(self, session: Session, vocab: int, file: zipfile.ZipFile) -> None:
        length = self.about.length
        for name in ("tokens", "positions", "generated"):
            kept = getattr(session, name)[:length]
            kept[:] = _read(file, name, kept.shape, kept.dtype)
        if session.tokens[:length].min() < 0 or session.tokens[:length].max() >= vocab:
            raise ValueError("tokens that there are not")
        session.length = length
        if self.about.logits:
            session.keep_logits(_read(file, "logits", (vocab,), np.dtype(np.float32)))
        session.origin = Provenance(self.config, **self.about.origin)

    def _read_layers(self, generator: Generator, file: zipfile.ZipFile) -> None:
        rows = Rows(0, self.about.length)
        for layer in range(generator.model.layers):
            with generator.store.open(layer) as cache:
                for name, target in cache.target(rows).items():
                    generator.device.upload(
                        _read(file, f"{name}{layer:03}", target.shape, target.dtype), target
                    )
                cache.commit(rows)
                view, state = cache.view(rows.stop), generator.session.decode_state
                generator.decoding.observe(layer, view, rows, generator.provider, state)

    def _read_state(self, generator: Generator, file: zipfile.ZipFile) -> None:
        policy, state = self.config.algorithm, generator.session.prefill_state
        policy.restore(state, self.about.state)
        kept = policy.kept(state, self.about.length)
        for name, target in kept.arrays.items() if kept else ():
            generator.device.upload(_read(file, f"state-{name}", target.shape, target.dtype), target)


def _in_words(config: PrefillConfig) -> str:
    return f"{config.policy} {config.in_short()}".strip()


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """What can be wrong with the file as one InputError."""
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, LookupError, ValueError, EOFError, NotImplementedError) as error:
        raise InputError(f"{path}: damaged, or no saved session; run the prompt again") from error


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if npy.read_magic(member) != (1, 0):
        raise ValueError("another version of npy")
    shape, columns_first, dtype = npy.read_array_header_1_0(member)
    if columns_first:
        raise ValueError("columns first")
    return shape, dtype


def _read(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Nothing of a size is made before the file says that size. Raises ValueError for any other."""
    array = np.empty(shape, dtype)
    with file.open(f"{name}.npy") as member:
        if _header(member) != (tuple(shape), dtype):
            raise ValueError(f"{name} has another shape")
        left = memoryview(array.reshape(-1).view(np.uint8).data)
        while left:
            piece = member.read(min(len(left), PIECE))
            if not piece:
                raise EOFError(name)
            left[: len(piece)] = piece
            left = left[len(piece) :]
        if member.read(1):  # at its end the checksum is looked at
            raise ValueError(f"{name} goes on")
    return array
