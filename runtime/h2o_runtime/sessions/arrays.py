"""A whole session as arrays by name, to store and to continue from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches import LayerStore, RetainedRows, Rows
from h2o_runtime.caches.reuse import Provenance, same_arithmetic, shared_prefix
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.policies.decode import DecodePolicy
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.sessions.session import IntArray, Session

# Reads the array of a name, shape and dtype; raises ValueError if it has another.
Reader: TypeAlias = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]

_ON_HOST = ("tokens", "positions", "generated")


@dataclass(frozen=True)
class SessionShape:
    """What the arrays are of.

    origin  how the rows came about; its configuration is the one that they were computed with
    decode  the decode policy of its answers
    logits  whether those after the last token are among the arrays
    state   numbers of the prefill policy's state
    stored  the dtype of rows; None, in older files: the model's
    """

    origin: Provenance
    decode: DecodePolicy[Any]
    length: int
    logits: bool
    state: dict[str, int]
    stored: str | None = None

    @classmethod
    def of(cls, session: Session) -> SessionShape:
        """Raises InputError if there is nothing to store, ConfigError for a policy whose state cannot be
        saved.
        """
        spec, policy = session.spec, session.origin.policy
        if policy is None or not session.length:
            raise InputError("there is nothing to save: no prompt has been read")
        if not session.origin.whole:
            raise ConfigError(
                f"the cache evicted {spec.forgets(session.length):,} of {session.length:,} tokens, and only a "
                "whole session can be saved: use another cache, or one with more tokens",
                field="cache",
            )
        saved = policy.saved_state(session.prefill_state, session.length)
        if saved is None:
            raise ConfigError(
                f"policy {policy.name} cannot save its state of a prompt: use another policy",
                field="policy",
            )
        has_logits, state = session.logits is not None, dict(saved.numbers)
        origin = session.origin
        if origin.only is not None:
            origin = replace(origin, only=(session.length,))  # copies of states at other rows stay behind
        return cls(origin, spec.decoding, session.length, has_logits, state, spec.stored_dtype)

    @property
    def policy(self) -> PrefillPolicy[Any]:
        policy = self.origin.policy
        assert isinstance(policy, PrefillPolicy)
        return policy


class KnownSession(Protocol):
    """A session that is not live: its shape and its tokens, int64 [length]."""

    @property
    def shape(self) -> SessionShape: ...

    @property
    def tokens(self) -> IntArray: ...


def begins(session: KnownSession, longer: KnownSession) -> bool:
    """Whether the other session contains this one."""
    shared = shared_prefix(session.tokens, longer.tokens)
    return shared == session.shape.length and same_arithmetic(session.shape.policy, longer.shape.policy)


def row_name(name: str, layer: int) -> str:
    """The name of a layer's array for `name` in `KV.tensors`."""
    return f"{name}{layer:03}"


def first_row(model: ModelSpec, shape: SessionShape, layer: int) -> int:
    """The first row of a layer among the arrays: a window needs no earlier row."""
    window = model.layer(layer).window
    return max(0, shape.origin.earliest - window + 1) if window else 0


def arrays_of(session: Session, shape: SessionShape, rows: bool = True) -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays, one at a time on the host; without `rows` all but keys and values.

    They may be views into the session.
    """
    download = session.spec.device.download
    for name in _ON_HOST:
        yield name, getattr(session, name)[: shape.length]
    if session.logits is not None:
        yield "logits", session.logits
    for layer in range(session.spec.model.layers if rows else 0):
        with session.store.open(layer) as cache:
            first = first_row(session.spec.model, shape, layer)
            for name, tensor in cache.stored_rows(first, shape.length).items():
                yield row_name(name, layer), download(tensor)
    saved = shape.policy.saved_state(session.prefill_state, shape.length)
    for name, tensor in saved.arrays.items() if saved else ():
        yield f"state-{name}", download(tensor)


def fill(session: Session, shape: SessionShape, read: Reader, retained: RetainedRows | None = None) -> None:
    """Make the session one of these arrays. What `read` raises leaves it empty.

    retained  keys and values that waited in the session's store, or one beside it; otherwise they are among the
              arrays
    """
    session.reset()
    session.prepare(shape.policy)
    try:
        _fill_tokens(session, shape, read)
        _fill_layers(session, shape, read, retained)
        _fill_state(session, shape, read)
    except BaseException:
        session.reset()
        raise


def _fill_tokens(session: Session, shape: SessionShape, read: Reader) -> None:
    vocab = session.spec.model.vocab_size
    for name in _ON_HOST:
        target = getattr(session, name)[: shape.length]
        target[:] = read(name, target.shape, target.dtype)
    tokens = session.tokens[: shape.length]
    if tokens.min() < 0 or tokens.max() >= vocab:
        raise ValueError("a token is beyond the vocabulary")
    session.length = shape.length
    if shape.logits:
        session.keep_logits(read("logits", (vocab,), np.dtype(np.float32)))
    session.origin = shape.origin


def _fill_layers(session: Session, shape: SessionShape, read: Reader, retained: RetainedRows | None) -> None:
    """The decode policy sees the rows as newly written."""
    if retained is not None:
        retained.go_on(session.store)
    rows, spec = Rows(0, shape.length), session.spec
    session.store.restored(shape.length)
    for layer in range(spec.model.layers):
        with session.store.open(layer) as cache:
            if retained is None:
                _fill_layer(session, layer, cache, Rows(first_row(spec.model, shape, layer), rows.stop), read)
            if spec.model.layer(layer).sees_all:
                policy_layer, provider = spec.model.policy_layers[layer], spec.layers.providers[layer]
                spec.decoding.observe(
                    policy_layer, cache.view(rows.stop), rows, provider, session.decode_state
                )


def _fill_layer(session: Session, layer: int, cache: LayerStore, rows: Rows, read: Reader) -> None:
    spec = session.spec
    if spec.stored_dtype == spec.model.dtype and not cache.restores:
        for name, target in cache.target(rows).items():
            spec.device.upload(read(row_name(name, layer), target.shape, target.dtype), target)
        cache.commit(rows)
    else:  # already rounded; must not be rounded again
        kinds = cache.stored_kinds(rows.start, rows.stop).items()
        arrays = {name: read(row_name(name, layer), *kind) for name, kind in kinds}
        cache.restore(arrays, rows.start)


def _fill_state(session: Session, shape: SessionShape, read: Reader) -> None:
    policy, state = shape.policy, session.prefill_state
    policy.restore(state, shape.state)
    saved = policy.saved_state(state, shape.length)
    for name, target in saved.arrays.items() if saved else ():
        session.spec.device.upload(read(f"state-{name}", target.shape, target.dtype), target)
