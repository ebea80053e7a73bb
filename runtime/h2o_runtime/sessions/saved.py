"""A session in a file: tokens, keys, values and the policies' state, to continue from later.

The file is an uncompressed npz, arrays one after the other, each with its checksum; `about` describes them.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from h2o_runtime.caches.reuse import Provenance, same_arithmetic
from h2o_runtime.errors import ConfigError, InputError, OutputError
from h2o_runtime.files.inputs import open_input
from h2o_runtime.files.outputs import check_target, replaced
from h2o_runtime.layer_spec import Strict
from h2o_runtime.policies.decode import DECODE
from h2o_runtime.policies.prefill import PREFILL, PrefillPolicy
from h2o_runtime.sessions.arrays import SessionShape, arrays_of, fill
from h2o_runtime.sessions.session import IntArray, Session
from h2o_runtime.sessions.spec import SessionSpec
from h2o_runtime.sessions.transcript import Transcript

FORMAT = 6  # in 5, memory sets behind 4,096 tokens had other sizes
ABOUT = "about"
MOST_ABOUT = 1 << 20  # bytes
TRANSCRIPT = "transcript"  # of a chat session; older files have none
TRANSCRIPT_BYTES = 4096  # per token, at most: less than its keys and values
BLOCK = 1 << 20  # bytes read at once


class _Version(BaseModel):
    format: int


class _Origin(Strict):
    """A Provenance without its policy."""

    prompt: int
    sparse: int
    turn: int
    complete: bool
    whole: bool
    exact_decode: bool
    earliest: int
    rounded: bool
    only: tuple[int, ...] | None


class _About(Strict):
    """bundle: its identity. origin: how its rows came about. state: the prefill policy's numbers."""

    format: int
    bundle: str
    prefill: dict[str, Any]
    origin: _Origin
    decode: dict[str, Any]
    length: int = Field(gt=0)
    logits: bool
    state: dict[str, int]
    stored: str | None = None

    @classmethod
    def of(cls, shape: SessionShape, bundle: str) -> _About:
        origin = {field.name: getattr(shape.origin, field.name) for field in fields(Provenance)}
        prefill = PREFILL.settings_of(origin.pop("policy"))
        values = {field.name: getattr(shape, field.name) for field in fields(shape) if field.name != "origin"}
        values["decode"] = DECODE.settings_of(shape.decode)
        return cls(format=FORMAT, bundle=bundle, prefill=prefill, origin=_Origin(**origin), **values)

    def shape(self) -> SessionShape:
        """Raises TypeError and ConfigError for unknown settings."""
        origin = Provenance(PREFILL.make(self.prefill), **self.origin.model_dump())
        return SessionShape(
            origin, DECODE.make(self.decode), self.length, self.logits, self.state, self.stored
        )


def save_session(session: Session, path: Path) -> None:
    """Write the session; an existing file is replaced once the new one is complete.

    Raises InputError if there is nothing to save, ConfigError for a policy whose state cannot be saved, and
    OutputError.
    """
    shape, identity = SessionShape.of(session), session.spec.bundle.manifest.identity
    write_session(path, identity, shape, arrays_of(session, shape), session.transcript)


def write_session(
    path: Path,
    bundle: str,
    shape: SessionShape,
    arrays: Iterable[tuple[str, NDArray[Any]]],
    transcript: Transcript | None,
) -> int:
    """As `save_session`, for a session that need not be live → the file's size. `bundle` is its identity.
    Conversations are private: the file has mode 0600.
    """
    about = _About.of(shape, bundle).model_dump_json().encode()
    with replaced(path, private=True) as partial:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as file:
            _write(file, ABOUT, np.frombuffer(about, np.uint8))
            if transcript is not None:
                _write(file, TRANSCRIPT, np.frombuffer(transcript.written(), np.uint8))
            for name, array in arrays:
                _write(file, name, array)
        return partial.stat().st_size  # under its own name another server may remove it at any time


def check_session_target(path: Path) -> None:
    """Raises OutputError if `write_session` must not write there: only saved sessions are replaced."""
    target = check_target(path)
    if not target.exists() or not target.stat().st_size:  # as mktemp makes one
        return
    try:
        SavedSession.open(target)
    except InputError as error:
        raise OutputError(f"{path}: is a file, but no saved session; name another file") from error


def _write(file: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
        npy.write_array(member, array, version=(1, 0), allow_pickle=False)


@dataclass(frozen=True, eq=False)
class SavedSession:
    """A file of `save_session` whose tokens were read, int64 [length]; `load_into` reads the other arrays.

    bundle  the identity of the bundle that it is of
    nbytes  the file's size
    """

    path: Path
    bundle: str
    shape: SessionShape
    tokens: IntArray
    transcript: Transcript | None
    nbytes: int

    @classmethod
    def open(cls, path: Path) -> SavedSession:
        """Raises InputError if it cannot be read or is not a saved session."""
        with _opened(path) as file:
            written = _bytes(file, ABOUT, MOST_ABOUT)
            version = _Version.model_validate_json(written).format
            if version != FORMAT:
                raise InputError(f"{path}: saved in format {version}; this version reads format {FORMAT}")
            about = _About.model_validate_json(written)
            try:
                shape = about.shape()
            except (TypeError, ConfigError) as error:
                raise InputError(f"{path}: saved with settings that this version does not have") from error
            transcript = None
            if f"{TRANSCRIPT}.npy" in file.namelist():
                data = _bytes(file, TRANSCRIPT, TRANSCRIPT_BYTES * (about.length + 1))
                transcript = Transcript.read(data)
            tokens = _read(file, "tokens", (shape.length,), np.dtype(np.int64))
            return cls(path, about.bundle, shape, tokens, transcript, path.stat().st_size)

    def load_into(self, session: Session, policy: PrefillPolicy[Any]) -> None:
        """Make this the live session, which continues under `policy`.

        Raises InputError if the file is of another bundle, has other settings, exceeds the context, or is
        damaged; in the last case the live session is empty afterwards.
        """
        self._check(session.spec, policy)
        with _opened(self.path) as file:
            fill(session, self.shape, partial(_read, file))
        session.transcript = self.transcript

    def _check(self, spec: SessionSpec, policy: PrefillPolicy[Any]) -> None:
        path, shape = self.path, self.shape
        if self.bundle != spec.bundle.manifest.identity:
            raise InputError(f"{path}: saved with another bundle than {spec.bundle.folder}: use that bundle")
        if not same_arithmetic(shape.policy, policy):
            raise InputError(
                f"{path}: saved under {shape.policy}, and this run asks for {policy}: give the same settings"
            )
        if shape.decode != spec.decoding:
            raise InputError(
                f"{path}: answers in it were decoded under {shape.decode}, and this run asks for "
                f"{spec.decoding}: give the same settings"
            )
        stored = shape.stored or spec.model.dtype
        if stored != spec.stored_dtype:
            raise InputError(
                f"{path}: its keys and values are {stored}, and this run stores {spec.stored_dtype}: give the same "
                "rows of `cache`"
            )
        if spec.forgets(shape.length):
            raise InputError(
                f"{path}: it holds {shape.length:,} tokens, and this run keeps fewer: use another "
                "cache, or one with more tokens"
            )
        if shape.length > spec.context:
            raise InputError(
                f"{path}: it holds {shape.length:,} tokens, more than the context of {spec.context:,}: raise "
                f"`context` to {shape.length} or more"
            )


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Turns every error in the file into an InputError."""
    try:
        with open_input(path) as opened, zipfile.ZipFile(opened) as file:
            size = os.fstat(opened.fileno()).st_size
            if any(
                array.compress_type != zipfile.ZIP_STORED or array.file_size > size
                for array in file.infolist()
            ):
                raise ValueError("arrays that take more than the file has")
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, LookupError, ValueError, EOFError, NotImplementedError) as error:
        raise InputError(f"{path}: damaged, or no saved session") from error


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if npy.read_magic(member) != (1, 0):
        raise ValueError("another version of npy")
    shape, columns_first, dtype = npy.read_array_header_1_0(member)
    if columns_first:
        raise ValueError("columns first")
    return shape, dtype


def _bytes(file: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """An array of at most `most` bytes. Raises ValueError for a larger one."""
    with file.open(f"{name}.npy") as member:
        shape, dtype = _header(member)
        if dtype != np.uint8 or len(shape) != 1 or shape[0] > limit:
            raise ValueError(f"{name} is not an array of at most {limit:,} bytes")
        return member.read()


def _read(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Nothing is allocated before the file states its size. Raises ValueError for another size."""
    with file.open(f"{name}.npy") as member:
        if _header(member) != (tuple(shape), dtype):
            raise ValueError(f"{name} has another shape")
        if math.prod(shape) * dtype.itemsize > file.getinfo(f"{name}.npy").file_size:
            raise ValueError(f"{name} is cut off")
        array = np.empty(shape, dtype)
        left = memoryview(array.reshape(-1).view(np.uint8).data)
        while left:
            block = member.read(min(len(left), BLOCK))
            if not block:
                raise EOFError(name)
            left[: len(block)] = block
            left = left[len(block) :]
        if member.read(1):  # the checksum is verified at its end
            raise ValueError(f"{name} is longer than its header says")
    return array
