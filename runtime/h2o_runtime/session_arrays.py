"""All of a generator's session as arrays by name: to be kept elsewhere, and to be gone on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_runtime.caches import HeldRows, LayerStore, Rows
from h2o_runtime.config import PrefillConfig
from h2o_runtime.errors import ConfigError, InputError
from h2o_runtime.reuse import Provenance
from h2o_runtime.session import Session

if TYPE_CHECKING:
    from h2o_runtime.generator import Generator

# Gives the array of a name, shape and dtype; raises ValueError where it has another.
Reader: TypeAlias = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]

_ON_HOST = ("tokens", "positions", "generated")


@dataclass(frozen=True)
class SessionShape:
    """What the arrays are of.

    origin  how the rows came about; its configuration is the one that they were computed with
    decode  the decode policy's name and settings
    logits  whether those after the last token are among the arrays
    state   numbers of the prefill policy's state
    stored  the dtype that rows are kept as; None, in older files: the model's
    """

    origin: Provenance
    decode: dict[str, Any]
    length: int
    logits: bool
    state: dict[str, int]
    stored: str | None = None

    @classmethod
    def of(cls, generator: Generator) -> SessionShape:
        """Raises InputError where there is nothing to keep, ConfigError for a policy whose state cannot be."""
        session = generator.session
        config = session.origin.config
        if config is None or not session.length:
            raise InputError("there is nothing to save: no prompt has been read")
        if not session.origin.whole:
            raise ConfigError(
                f"of {session.length:,} tokens the cache has forgotten {generator.forgets(session.length):,}, and "
                "only a whole session can be saved: raise --cache-tokens, or leave it out",
                field="cache_tokens",
            )
        kept = config.algorithm.kept(session.prefill_state, session.length)
        if kept is None:
            raise ConfigError(
                f"policy {config.algorithm.name} cannot save what it remembers of a prompt: use another",
                field="policy",
            )
        has_logits = session.logits is not None
        stored = generator.cache.stored_dtype(generator.model)
        return cls(
            session.origin, decode_of(generator), session.length, has_logits, dict(kept.numbers), stored
        )

    @property
    def config(self) -> PrefillConfig:
        assert self.origin.config is not None
        return self.origin.config


def row_name(part: str, layer: int) -> str:
    """Of a layer's array that is called `part` in `KV.parts`."""
    return f"{part}{layer:03}"


def decode_of(generator: Generator) -> dict[str, Any]:
    return {"name": generator.decoding.name, **asdict(generator.decoding)}


def arrays_of(
    generator: Generator, shape: SessionShape, rows: bool = True
) -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays, one at a time on the host; without `rows` all but keys and values.

    They may be views of what the generator goes on with.
    """
    session, download = generator.session, generator.device.download
    for name in _ON_HOST:
        yield name, getattr(session, name)[: shape.length]
    if session.logits is not None:
        yield "logits", session.logits
    for layer in range(generator.model.layers if rows else 0):
        with generator.store.open(layer) as cache:
            for name, tensor in cache.view(shape.length).kept(shape.length).items():
                yield row_name(name, layer), download(tensor)
    kept = shape.config.algorithm.kept(session.prefill_state, shape.length)
    for name, tensor in kept.arrays.items() if kept else ():
        yield f"state-{name}", download(tensor)


def fill(generator: Generator, shape: SessionShape, read: Reader, held: HeldRows | None = None) -> None:
    """Make the arrays the generator's session. What `read` raises leaves the session empty.

    held  keys and values that waited in the generator's store; otherwise they are among the arrays
    """
    generator.reset()
    generator.prepare_state(shape.config)
    try:
        _fill_session(generator.session, shape, generator.model.vocab_size, read)
        _fill_layers(generator, shape, read, held)
        _fill_state(generator, shape, read)
    except BaseException:
        generator.reset()
        raise


def _fill_session(session: Session, shape: SessionShape, vocab: int, read: Reader) -> None:
    for name in _ON_HOST:
        kept = getattr(session, name)[: shape.length]
        kept[:] = read(name, kept.shape, kept.dtype)
    tokens = session.tokens[: shape.length]
    if tokens.min() < 0 or tokens.max() >= vocab:
        raise ValueError("tokens that there are not")
    session.length = shape.length
    if shape.logits:
        session.keep_logits(read("logits", (vocab,), np.dtype(np.float32)))
    session.origin = shape.origin


def _fill_layers(generator: Generator, shape: SessionShape, read: Reader, held: HeldRows | None) -> None:
    """The decode policy sees the rows as if they had just been written."""
    if held is not None:
        held.go_on()
    rows, state = Rows(0, shape.length), generator.session.decode_state
    for layer in range(generator.model.layers):
        with generator.store.open(layer) as cache:
            if held is None:
                _fill_layer(generator, layer, cache, rows, read)
            generator.decoding.observe(layer, cache.view(rows.stop), rows, generator.provider, state)


def _fill_layer(generator: Generator, layer: int, cache: LayerStore, rows: Rows, read: Reader) -> None:
    if generator.cache.stored_dtype(generator.model) == generator.model.dtype:
        for name, target in cache.target(rows).items():
            generator.device.upload(read(row_name(name, layer), target.shape, target.dtype), target)
        cache.commit(rows)
    else:  # they were rounded, and must not be again
        parts = cache.view(rows.stop).parts.items()
        kinds = {name: ((rows.stop, *part.shape[1:]), part.dtype) for name, part in parts}
        cache.restore({name: read(row_name(name, layer), *kind) for name, kind in kinds.items()})


def _fill_state(generator: Generator, shape: SessionShape, read: Reader) -> None:
    policy, state = shape.config.algorithm, generator.session.prefill_state
    policy.restore(state, shape.state)
    kept = policy.kept(state, shape.length)
    for name, target in kept.arrays.items() if kept else ():
        generator.device.upload(read(f"state-{name}", target.shape, target.dtype), target)
