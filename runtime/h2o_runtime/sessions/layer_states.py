"""Layers that keep a state in place of rows: its size does not grow with the text, and it cannot be cut shorter.

A text can go on where its state is known: at its end, and at a few rows where a copy was kept. Those are where a
prompt began, the row before its end, so that the same prompt can come again, and the last whole block of rows that
another prompt would compute alike. A step of several rows also keeps a copy at each row but its last, so that
drafted tokens can be taken back; memory for these copies is reserved where there are drafts. Layers with rows lie
in a cache of any kind, beside.

A layer's kind declares what its state is made of (`StateLayout`). Attention reads and writes arrays; dense graphs
read tails, and write the rows that the next tails are cut from. So each is copied in the order of its own kind of
work, and neither waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from h2o_runtime.attention.provider import AttentionProvider
from h2o_runtime.caches.cache import Cache, KVStore, LayerStore, Rows
from h2o_runtime.caches.reuse import Provenance
from h2o_runtime.devices import Device, Tensor
from h2o_runtime.errors import InputError
from h2o_runtime.kv import KV, StateView
from h2o_runtime.layers import state_layout
from h2o_runtime.layers.kind import ArrayShape, StateLayout
from h2o_runtime.model_spec import ModelSpec
from h2o_runtime.names import Speculation

AT_ONCE = 1024  # rows of a prompt
BLOCK = 1024  # a state is kept at the last multiple of it
COPIES = 4  # states beside the text's own
AHEAD = 3  # more of them, at rows of a step that may be taken back, where drafts are verified


def rows_ahead(speculate: Speculation, native_products: bool) -> int:
    """How many rows of a step can be taken back: none where nothing drafts, or rows depend on those beside them."""
    return AHEAD if speculate != "off" and native_products else 0


def session_store(
    cache: Cache,
    model: ModelSpec,
    capacity: int,
    spare_bytes: int,
    device: Device,
    providers: Sequence[AttentionProvider],
    ahead: int,
) -> KVStore:
    """As `Cache.new_pool`, of a model some of whose layers may have states; ahead: see `StoreWithStates`."""
    if model.with_rows is model:
        return cache.new_pool(model, capacity, spare_bytes, device, providers)
    specs = model.each_layer
    with_rows = [provider for spec, provider in zip(specs, providers, strict=True) if spec.state is None]
    rows = cache.new_store(model.with_rows, capacity, device, with_rows)
    return StoreWithStates(model, rows, capacity, device, ahead)


def shares_memory(cache: Cache, model: ModelSpec) -> bool:
    """As `Cache.shares_memory`, of such a model. States cannot be shared, so with them each session has its own."""
    return cache.shares_memory and model.with_rows is model


def session_bytes(cache: Cache, model: ModelSpec, context: int, ahead: int = AHEAD) -> int:
    """As `Cache.store_bytes`, of such a model."""
    return cache.store_bytes(model.with_rows, context) + states_bytes(model, context, ahead)


def states_bytes(model: ModelSpec, context: int, ahead: int = AHEAD) -> int:
    """What states take, and what is between them and dense graphs."""
    states = (1 + COPIES + ahead) * sum(
        _bytes(layout.state) for spec in model.each_layer if (layout := state_layout(spec, model.dtype))
    )
    layouts = [layout for spec in set(model.each_layer) if (layout := state_layout(spec, model.dtype))]
    rows = (min(AT_ONCE, context), 1)
    return states + sum(_bytes(layout.room(n)) for layout in layouts for n in rows)


def _bytes(arrays: Mapping[str, ArrayShape]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _zeros(arrays: Mapping[str, ArrayShape], device: Device) -> dict[str, Tensor]:
    return {name: device.zeros(array.shape, array.dtype) for name, array in arrays.items()}


class States:
    """Which rows the states of all layers are known at.

    row      that the layers' own states are behind; None: unknown, as a pass was stopped on its way
    copied   row → number of the copy that each layer has of its state there, those made first first
    planned  the same of copies that the pass under way makes
    began    where the prompt began that was read last, maybe in pieces; None: there were steps since, or cuts
    """

    def __init__(self) -> None:
        self.row: int | None = 0
        self.began: int | None = None
        self.copied: dict[int, int] = {}
        self.planned: dict[int, int] = {}
        self._stop = 0

    def begin(self, stop: int, rows: Sequence[int] = (), ahead: Sequence[int] = ()) -> None:
        """A pass to row `stop` begins, which is to keep copies at `rows`, and until the next pass at `ahead`."""
        self.row, self._stop = None, stop
        self.copied = {row: number for row, number in self.copied.items() if number < COPIES}
        self.planned = {}
        for row in rows:
            if row not in self.copied:
                self.planned[row] = self.number()
        self.planned |= {row: COPIES + i for i, row in enumerate(ahead)}

    def number(self) -> int:
        """Of a copy that may be overwritten: the one made first, where there is no other. Never that where the
        prompt began: another may begin there too.
        """
        used = {*self.copied.values(), *self.planned.values()}
        free = [number for number in range(COPIES) if number not in used]
        if free:
            return free[0]
        kept = (row for row, number in self.copied.items() if number < COPIES and row != self.began)
        return self.copied.pop(next(kept))

    def finish(self) -> None:
        """All layers are behind the pass."""
        self.row = self._stop
        self.copied |= self.planned
        self.planned = {}

    @property
    def known(self) -> tuple[int, ...]:
        return tuple(sorted({*self.copied, *([] if self.row is None else [self.row])}))


class Fresh(NamedTuple):
    """Buffers of new rows, which layers of one shape share."""

    prompt: dict[str, Tensor]
    step: dict[str, Tensor]


class LayerState(LayerStore):
    """One layer."""

    restores = in_turns = True

    def __init__(
        self, layout: StateLayout, states: States, fresh: Fresh, copies: int, last: bool, device: Device
    ) -> None:
        """last: whether a pass ends with it."""
        self.present = _zeros(layout.state, device)
        self.copies = [_zeros(layout.state, device) for _ in range(copies)]
        self._layout, self._states, self._fresh, self._last = layout, states, fresh, last
        self._device = device
        self._rows = Rows(0, 0)
        self._passed = False

    def __enter__(self) -> LayerState:
        self._passed = False
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._last and self._passed and kind is None:
            self._states.finish()

    def given(self) -> dict[str, Tensor]:
        return {name: self.present[name] for name in self._layout.tails}

    def target(self, rows: Rows) -> dict[str, Tensor]:
        self._rows = rows  # on a GPU they are attended to by calls that come before their dense graph's
        fresh, n = self._new(rows)
        before = self._layout.before
        return {name: tensor[before(name) : before(name) + n] for name, tensor in fresh.items()}

    def commit(self, rows: Rows) -> None:
        """Tails go on behind the rows; the rows themselves wait for whoever attends."""
        fresh, n = self._new(rows)
        copy = self._device.copy_beside_dense
        for name, tail in self._layout.tails.items():
            given, own = fresh[tail.output], self.present[name]
            copy(own, given[: tail.rows])
            for row, number in self._planned(rows).items():
                copy(given[row : row + tail.rows], self.copies[number][name])
            copy(given[n : n + tail.rows], own)
        self._rows, self._passed = rows, True

    def view(self, length: int | Tensor) -> StateView:
        """Of the rows that were given a target last, or in a step committed."""

        def arrays(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensors[name] for name in self._layout.arrays}

        saved = {row: arrays(self.copies[number]) for row, number in self._planned(self._rows).items()}
        return StateView(
            None, None, length, new=self.target(self._rows), arrays=arrays(self.present), saved=saved
        )

    def stored_rows(self, first: int, length: int) -> dict[str, Tensor]:
        assert self._states.row == length, "a session is stored as it is"
        return self.present

    def stored_kinds(self, first: int, length: int) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in self.present.items()}

    def restore(self, arrays: dict[str, NDArray[Any]], first: int) -> None:
        for name, tensor in self.present.items():
            self._device.upload(arrays[name], tensor)

    def keep(self, number: int) -> None:
        """Copy `number` becomes the state as it is. Between passes, as the next two."""
        self._copy(self.present, self.copies[number])

    def return_to(self, number: int) -> None:
        """The state becomes copy `number`."""
        self._copy(self.copies[number], self.present)

    def clear(self) -> None:
        """The state becomes that of an empty text."""
        for tensor in self.present.values():
            self._device.clear(tensor)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in (self.present, *self.copies) for tensor in tensors.values())

    def _copy(self, source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
        for name in self._layout.tails:
            self._device.copy_beside_dense(source[name], target[name])
        for name in self._layout.arrays:
            self._device.copy(source[name], target[name])

    def _new(self, rows: Rows) -> tuple[dict[str, Tensor], int]:
        """Where new rows lie, and how many they are."""
        if rows.at is not None:
            return self._fresh.step, 1
        return self._fresh.prompt, rows.stop - rows.start

    def _planned(self, rows: Rows) -> dict[int, int]:
        """Copies to make among the rows, by how many of them come before."""
        if rows.at is not None:
            return {}
        planned = self._states.planned.items()
        return {row - rows.start: number for row, number in planned if rows.start < row <= rows.stop}


class StoreWithStates(KVStore):
    """`rows` is the store of the layers that have some."""

    recordable: ClassVar[bool] = False

    def __init__(self, model: ModelSpec, rows: KVStore, capacity: int, device: Device, ahead: int) -> None:
        """ahead: rows of a step that can be taken back; each costs a copy of every state."""
        self._ahead, self.step_rows = ahead, 1 + ahead
        specs = model.each_layer
        layouts = {i: layout for i, spec in enumerate(specs) if (layout := state_layout(spec, model.dtype))}
        self._rows, self._states = rows, States()
        limit = min(AT_ONCE, capacity)
        self._fresh = {
            specs[i]: Fresh(*(_zeros(layout.room(n), device) for n in (limit, 1)))
            for i, layout in layouts.items()
        }
        self._layers = {
            i: LayerState(
                layout, self._states, self._fresh[specs[i]], COPIES + ahead, i == max(layouts), device
            )
            for i, layout in layouts.items()
        }
        self._numbers = {
            i: state for state, i in enumerate(i for i in range(len(specs)) if i not in self._layers)
        }
        self.at_once = min(limit, rows.at_once or limit)

    def open(self, layer: int) -> AbstractContextManager[LayerStore]:
        return self._layers[layer] if layer in self._layers else self._rows.open(self._numbers[layer])

    def read_in_pages(self, layers: frozenset[int]) -> None:
        self._rows.read_in_pages(frozenset(self._numbers[layer] for layer in layers))

    def before_prompt(self, past: int, length: int, lasting: int) -> None:
        self._rows.before_prompt(past, length, lasting)
        if self._states.began is None:  # else this is a later piece
            self._states.began = past
        if past and past not in self._states.copied:
            self._keep(past)
        rows = (min(lasting, length - 1) // BLOCK * BLOCK, length - 1)
        self._states.begin(length, [row for row in dict.fromkeys(rows) if row > past])

    def before_step(self, past: int, rows: int = 1) -> None:
        if self._states.row != past:
            raise InputError(
                "a step broke off, and the state after the last token is lost: prefill the prompt again"
            )
        self._rows.before_step(past, rows)
        self._states.began = None
        self._states.begin(past + rows, ahead=range(past + 1, past + rows))

    def fixed_rows(self) -> Sequence[KV] | None:
        """Of the layers with rows."""
        return self._rows.fixed_rows()

    def bounded(self, origin: Provenance) -> Provenance:
        return replace(self._rows.bounded(origin), only=self._states.known)

    @property
    def earliest(self) -> int:
        return self._rows.earliest

    def truncate(self, rows: int) -> None:
        self._rows.truncate(rows)
        states = self._states
        states.planned = {}
        states.copied = {row: number for row, number in states.copied.items() if row <= rows}
        if states.row == rows:
            return
        states.began = None
        states.row = rows if rows in states.copied or not rows else None
        if states.row is None:
            return
        for layer in self._layers.values():
            if rows:
                layer.return_to(states.copied[rows])
            else:
                layer.clear()

    def restored(self, rows: int) -> None:
        """The states came from elsewhere, and are those behind `rows` rows."""
        self._rows.restored(rows)
        self._states.row, self._states.copied, self._states.began = rows, {}, None

    def report(self) -> dict[str, Any]:
        return self._rows.report()

    @property
    def nbytes(self) -> int:
        fresh = [tensor for rooms in self._fresh.values() for room in rooms for tensor in room.values()]
        states = sum(layer.nbytes for layer in self._layers.values())
        return int(self._rows.nbytes + states + sum(tensor.nbytes for tensor in fresh))

    def _keep(self, row: int) -> None:
        """A copy of the states as they are, at `row`."""
        number = self._states.number()
        for layer in self._layers.values():
            layer.keep(number)
        self._states.copied[row] = number
