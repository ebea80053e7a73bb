"""The module `h2o_plugins._cuda` as a double that only checks order. All memory of the device reads as zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_runtime import operators
from h2o_runtime.kv_entry import KV_ENTRY
from h2o_runtime.limits import MOST_STEP_ROWS
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import (
    BLOCK_SELECT,
    CACHE_APPEND,
    KEYS,
    MEMORY_STEP,
    QUERY_SELECT,
    STEP_ATTENTION,
    STEP_ROWS_ATTENTION,
    VALUES,
)
from tests.order.array import Array
from tests.order.clocks import Order, Use, of_array

WORKSPACE = 256  # bytes that every call asks for
BY_NAME = {one.name: one for one in (*operators.OPERATORS, *operators.RUNTIME_OPERATORS)}


class CudaError(RuntimeError):
    pass


def whole(array: Array, writes: bool, name: str) -> Use:
    return Use(array.address, array.address + array.nbytes, writes, name)


def rows(array: Array, start: int, stop: int, writes: bool) -> Use:
    size = array.nbytes // max(len(array), 1)
    return Use(array.address + start * size, array.address + stop * size, writes, "rows of the cache")


class RowLists:
    """Which rows of the cache lists on the device may name: those before a bound, where one is known."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int, NDArray[Any] | int]] = []  # of the latest last

    def learn(self, address: int, nbytes: int, rows: NDArray[Any] | int) -> None:
        """Row numbers that lie at an address, or what they are all below."""
        self._known.append((address, address + nbytes, rows))

    def bound(self, address: int, nbytes: int) -> int | None:
        if not nbytes:
            return 0
        for start, stop, known in reversed(self._known):
            if not start <= address < stop:
                continue
            if isinstance(known, int):
                return known
            at = (address - start) // known.itemsize
            return int(known.reshape(-1)[at : at + nbytes // known.itemsize].max(initial=-1)) + 1
        return None

    def numbers(self, array: Array) -> NDArray[Any]:
        """The contents of an array of integers that was uploaded."""
        for start, stop, known in reversed(self._known):
            if start <= array.address < stop and not isinstance(known, int):
                at = (array.address - start) // known.itemsize
                count = array.nbytes // known.itemsize
                return known.reshape(-1)[at : at + count].reshape(array.shape)
        raise AssertionError("nothing was uploaded there")

    def copy(self, source: int, target: int, nbytes: int) -> None:
        bound = self.bound(source, nbytes)
        if bound is not None:
            self.learn(target, nbytes, bound)

    def chosen(self, operator: Operator, arguments: Mapping[str, Any]) -> None:
        """Lists that an operator makes name rows before the chunk, or the past, that they are made for."""
        bound: int | None = None
        if operator is MEMORY_STEP:
            bound = arguments["stop"]
        elif operator in (BLOCK_SELECT, QUERY_SELECT):
            bound = self._past(arguments)
        if bound is None:
            return
        for tensor in operator.outputs:
            array = arguments.get(tensor.name)
            if tensor.dtype == "int32" and array is not None:
                self.learn(array.address, array.nbytes, bound)

    def read(self, operator: Operator, arguments: Mapping[str, Any]) -> int | None:
        """The bound of those rows that an operator reads, where it is not all of them."""
        if operator is BLOCK_SELECT:
            return self._past(arguments)
        memory = arguments.get("memory")
        return None if memory is None else self.bound(memory.address, memory.nbytes)

    def _past(self, arguments: Mapping[str, Any]) -> int | None:
        """The greatest past of tiles."""
        past = arguments["past"]
        above = self.bound(past.address, past.nbytes)
        return None if above is None else above - 1


class KV:
    def __init__(
        self, k: Any, v: Any, length: Any, pages: Any = None, page_rows: int = 0, scales: Any = None
    ) -> None:
        self.tensors = [k, *([] if v is k else [v]), *({id(one): one for one in scales or ()}.values())]
        self.length = length

    def read(self, bound: int | None) -> list[Use]:
        """`bound`: rows before it, where the operator reads no others."""
        if isinstance(self.length, Array):
            return [
                whole(self.length, False, "length"),
                *(whole(tensor, False, "the cache") for tensor in self.tensors),
            ]
        length = self.length if bound is None else min(self.length, bound)
        return [rows(tensor, 0, length, False) for tensor in self.tensors]

    def written(self, operator: Operator, arguments: Mapping[str, Any]) -> list[Use]:
        if operator is CACHE_APPEND and arguments.get("at") is None:
            first = arguments["first"]
            return [rows(tensor, first, first + len(arguments["k"]), True) for tensor in self.tensors]
        return [whole(tensor, True, "the cache") for tensor in self.tensors]


def uses_of(operator: Operator, kv: KV | None, arguments: Mapping[str, Any], bound: int | None) -> list[Use]:
    """What an operator of the table reads and writes."""
    uses: list[Use] = []
    if kv is not None:
        updates = any(one.updated for one in operator.inputs if one.name in (KEYS, VALUES))
        if updates:
            uses += kv.written(operator, arguments)
        if operator is not CACHE_APPEND:
            uses += kv.read(bound)
    for tensor in operator.inputs:
        array = arguments.get(tensor.name)
        if isinstance(array, Array):
            uses.append(whole(array, False, tensor.name))
            if tensor.updated:
                uses.append(whole(array, True, tensor.name))
    for tensor in operator.outputs:
        array = arguments.get(tensor.name)
        if array is None and tensor.in_place:
            array = arguments.get(tensor.in_place)
        if isinstance(array, Array):
            uses.append(whole(array, True, tensor.name))
    return uses


def _caches_of(order: Order, lists: RowLists, lengths: Array, caches: Array) -> Iterator[Use]:
    """The caches that the rows of a step append to and read; padding has none."""
    entries = np.ascontiguousarray(lists.numbers(caches)).view(KV_ENTRY)[:, 0]
    for entry in entries[lists.numbers(lengths) > 0]:
        for name in ("k", "v", "k_scales", "v_scales"):
            if address := int(entry[name]):
                found = order.find(address)
                assert found is not None
                yield Use(found.start, found.stop, True, "the cache")


Uses = Iterable[Use] | Callable[[], Iterable[Use]]  # of a recording: those of the moment when it is replayed


def order_module(order: Order) -> Any:
    """The double; all that it is given goes to `order`."""
    lists = RowLists()

    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes
            self.address = order.allocate(nbytes)

    class PinnedMemory:
        def __init__(self, nbytes: int) -> None:
            self._bytes = np.zeros(nbytes, np.uint8)
            if nbytes:
                order.register(self._bytes.__array_interface__["data"][0], nbytes)

        def array(self) -> NDArray[np.uint8]:
            return self._bytes

    class Event:
        def __init__(self, timing: bool = False) -> None:
            self._moment: dict[int, int] | None = None

        def record(self, stream: Stream) -> None:
            self._moment = stream.moment()

        def synchronize(self) -> None:
            if self._moment is not None:
                order.wait_on_host(self._moment)

        def milliseconds_since(self, start: Event) -> float:
            return 1.0

    class Graph:
        def __init__(self, recorded: list[tuple[str, Uses]]) -> None:
            self._recorded = recorded

        def launch(self, stream: Stream) -> None:
            for label, uses in self._recorded:
                stream.run(label, uses)

    class Stream:
        def __init__(self, urgent: bool = False) -> None:
            self.handle = self._number = order.new_stream()
            self._recorded: list[tuple[str, Uses]] | None = None

        def run(self, label: str, uses: Uses) -> None:
            if self._recorded is not None:
                self._recorded.append((label, uses if callable(uses) else list(uses)))
            else:
                order.run(self._number, label, uses() if callable(uses) else uses)

        def moment(self) -> dict[int, int]:
            return order.moment(self._number)

        def synchronize(self) -> None:
            order.wait_on_host(self.moment())

        def wait(self, event: Any) -> None:
            if event._moment is not None:
                order.wait(self._number, event._moment)

        def upload(self, source: NDArray[Any], target: int) -> None:
            uses = [Use(target, target + source.nbytes, True)]
            if order.find(source.__array_interface__["data"][0]):
                uses.append(of_array(source, False))
            if source.dtype.kind == "i":
                lists.learn(target, source.nbytes, source.copy())
            self.run("an upload", uses)

        def download(self, source: int, target: NDArray[Any]) -> None:
            target[...] = 0
            self.run("a download", [Use(source, source + target.nbytes, False), of_array(target, True)])

        def copy(self, source: int, target: int, nbytes: int) -> None:
            lists.copy(source, target, nbytes)
            self.run("a copy", [Use(source, source + nbytes, False), Use(target, target + nbytes, True)])

        def clear(self, target: int, nbytes: int) -> None:
            lists.learn(target, nbytes, 1)
            self.run("a clear", [Use(target, target + nbytes, True)])

        def write_integers(self, target: int, values: Sequence[int]) -> None:
            self.run("integers", [Use(target, target + 8 * len(values), True)])

        def begin_capture(self) -> None:
            self._recorded = []

        def end_capture(self) -> Graph:
            recorded, self._recorded = self._recorded, None
            return Graph(recorded or [])

    class Kernels:
        """`counters` and `integers` are used by every call of the attention lane."""

        def __init__(self, *, counters: int, integers: int, query_heads: int, **sizes: Any) -> None:
            self._integers = Use(integers, integers + 64, True, "integers")
            self._counters = Use(counters, counters + 4 * MOST_STEP_ROWS * query_heads, True, "counters")

        def run(
            self,
            stream: Stream,
            operator: str,
            kv: KV | None,
            arguments: Mapping[str, Any],
            reserve: Callable[[int], tuple[int, int]],
        ) -> None:
            called = BY_NAME[operator]
            own = None if called is STEP_ROWS_ATTENTION else kv
            uses = uses_of(called, own, arguments, lists.read(called, arguments))
            lists.chosen(called, arguments)
            if called is not CACHE_APPEND:
                address, nbytes = reserve(WORKSPACE)
                uses += [Use(address, address + nbytes, True, "the workspace"), self._integers]
            if called in (STEP_ATTENTION, STEP_ROWS_ATTENTION):
                uses.append(self._counters)
            if called is STEP_ROWS_ATTENTION:
                lengths, caches = arguments["lengths"], arguments["caches"]
                stream.run(operator, lambda: [*uses, *_caches_of(order, lists, lengths, caches)])
            else:
                stream.run(operator, uses)

    return SimpleNamespace(
        MEMORY="cuda",
        CudaError=CudaError,
        device_count=lambda: 1,
        device_name=lambda: "a double",
        memory_info=lambda: (1 << 40, 1 << 40),
        Array=Array,
        Memory=Memory,
        PinnedMemory=PinnedMemory,
        Event=Event,
        Graph=Graph,
        Stream=Stream,
        KV=KV,
        Kernels=Kernels,
    )
