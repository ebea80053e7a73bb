"""--cache offload equals the contiguous cache bit for bit, whenever its copies are made."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import bundles
from tests.reference import checkpoints

from h2o_runtime import Generator
from h2o_runtime.caches import Offload, offload
from h2o_runtime.caches.offload import MappedRows, OffloadStore
from h2o_runtime.devices.transfers import HostTransfers
from h2o_runtime.errors import Cancelled, ConfigError, OutputError
from h2o_runtime.execution.reading import Watch
from h2o_runtime.kv import KV
from h2o_runtime.operator_spec import Operator
from h2o_runtime.operators import CACHED_ATTENTION, PROMPT_ATTENTION
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query

LAYERS, CONTEXT = 5, 140
FULL = Full(batch_size=32)
SPARSE = Query(chunk_size=16, batch_size=32, local=4, heavy=4, dense_tail=4)
LENGTHS = (1, 16, 17, 83)
RINGS = (2, 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offload")
    checkpoints.make_checkpoint(folder / "checkpoint", layers=LAYERS, kv_heads=2)
    return bundles.export(folder / "checkpoint", folder / "bundle")


@pytest.fixture(scope="module")
def plain(bundle: Path) -> Iterator[Generator]:
    with Generator.load(bundle, context=CONTEXT, threads=1, device="cpu") as generator:
        yield generator


def offloading(bundle: Path, buffers: int, file: Path, **options: Any) -> Generator:
    cache = Offload(buffers=buffers, file=str(file))
    return Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", cache=cache, **options)


class Delayed:
    """Copies that are made at any moment between being asked for and being waited for, in their order."""

    busy = waited = 0.0

    def __init__(self, seed: int) -> None:
        self.loaded = self.stored = 0
        self._random = random.Random(seed)
        self._asked, self._copies = 0, deque[tuple[np.ndarray, np.ndarray]]()

    def load(self, source: np.ndarray, target: np.ndarray, runs: list[tuple[int, int]] | None = None) -> None:
        for start, stop in [(0, len(source))] if runs is None else runs:
            self.loaded += source[start:stop].nbytes
            self._asked += 1
            self._copies.append((source[start:stop], target[start:stop]))
            self.some()

    def store(self, source: np.ndarray, target: np.ndarray) -> None:
        self.stored += source.nbytes
        self._asked += 1
        self._copies.append((source, target))
        self.some()

    def follow(self) -> None:
        self.some()

    def mark(self) -> int:
        return self._asked

    def wait(self, mark: int) -> None:
        self._make(mark - (self._asked - len(self._copies)))

    def some(self) -> None:
        self._make(self._random.choice((0, 0, 0, 1, 2, len(self._copies))))

    def _make(self, count: int) -> None:
        for _ in range(min(count, len(self._copies))):
            source, target = self._copies.popleft()
            target[:] = source


@pytest.fixture
def delay(monkeypatch: pytest.MonkeyPatch) -> Callable[[Generator, int], Delayed]:
    """Delays a generator's copies; what was never written is no number, and copies go on during attention."""

    def start(generator: Generator, seed: int) -> Delayed:
        store, transfers = generator.session.store, Delayed(seed)
        assert isinstance(store, OffloadStore)
        store.transfers = transfers
        for buffer in store.ring:
            buffer.layer, buffer.rows, buffer.mark = -1, 0, 0
        for arrays in (*(buffer.tensors for buffer in store.ring), *store.host.layers):
            for array in arrays.values():
                array[:] = np.nan
        run = type(generator.spec.provider).run  # without the delays of before

        def meanwhile(operator: Operator, *kv: KV, **arguments: Any) -> None:
            if operator in (CACHED_ATTENTION, PROMPT_ATTENTION):
                transfers.some()
            run(generator.spec.provider, operator, *kv, **arguments)
            if operator in (CACHED_ATTENTION, PROMPT_ATTENTION):
                transfers.some()

        monkeypatch.setattr(generator.spec.provider, "run", meanwhile)
        return transfers

    return start


QUEST = Quest(budget=16, page=4, dense_layers=1)


def conversation(generator: Generator, n: int, policy: PrefillPolicy[Any]) -> list[np.ndarray]:
    """A prompt, an answer, another turn, one that is stopped, its like, and another conversation: all logits."""
    generator.reset()
    first = bundles.random_ids(n, 1).tolist()
    found = [generator.prefill(first, policy), *(generator.decode(token) for token in range(5, 12))]
    longer = [*first, *range(5, 12), *bundles.random_ids(9, 2).tolist()]
    found += [generator.prefill(longer, policy), generator.decode(4)]
    calls = iter(range(10**6))
    stopped = [*longer[:-3], *bundles.random_ids(30, 4).tolist()]
    with pytest.raises(Cancelled):
        generator.prefill(stopped, policy, Watch(cancelled=lambda: next(calls) > 5))
    found += [generator.prefill([*longer[:-5], 8, 9], policy), generator.decode(6), generator.decode(7)]
    found += [
        generator.prefill(bundles.random_ids(n + 3, 3), policy),
        generator.decode(5),
        generator.decode(6),
    ]
    return [np.array(logits) for logits in found]


@pytest.mark.parametrize("buffers", RINGS)
def test_the_matrix(
    bundle: Path, plain: Generator, buffers: int, delay: Callable[[Generator, int], Delayed], tmp_path: Path
) -> None:
    with offloading(bundle, buffers, tmp_path / "rows") as generator:
        for n in LENGTHS:
            for policy in (FULL, SPARSE):
                expected = conversation(plain, n, policy)
                for seed in range(2):
                    delay(generator, seed)
                    np.testing.assert_array_equal(conversation(generator, n, policy), expected)


def too_early(patch: pytest.MonkeyPatch) -> None:
    commit = offload._Layer.commit

    def mistaken(self: Any, rows: Any) -> None:
        commit(self, rows)
        following = self._layer + len(self._store.ring)
        if rows.at is not None and following < LAYERS:
            self._store.prefetch(following, self._store.past)

    patch.setattr(offload._Layer, "commit", mistaken)


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delayed, "wait", lambda self, mark: self.some())


def rows_of_steps_are_lost(patch: pytest.MonkeyPatch) -> None:
    done = OffloadStore.done

    def mistaken(self: Any, layer: int, start: int, stop: int, step: bool) -> None:
        done(self, layer, stop if step else start, stop, step)

    patch.setattr(OffloadStore, "done", mistaken)


MISTAKES = (too_early, nobody_waits, rows_of_steps_are_lost)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_planted_mistake_shows(
    mistake: Callable[[pytest.MonkeyPatch], None],
    bundle: Path,
    plain: Generator,
    delay: Callable[[Generator, int], Delayed],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    expected = conversation(plain, 17, FULL)
    mistake(monkeypatch)
    with offloading(bundle, 2, tmp_path / "rows") as generator:
        delay(generator, 0)
        found = conversation(generator, 17, FULL)
    assert not np.array_equal(found, expected)


def test_a_thread_copies(bundle: Path, plain: Generator, tmp_path: Path) -> None:
    with offloading(bundle, 2, tmp_path / "rows") as generator:
        assert not (tmp_path / "rows").exists()  # nobody has to remove it
        store = generator.session.store
        assert isinstance(store, OffloadStore)
        np.testing.assert_array_equal(conversation(generator, 40, FULL), conversation(plain, 40, FULL))
        generator.reset()
        before = store.report()
        generator.prefill(bundles.random_ids(60, 5), FULL)
        generator.decode(5)
        told = store.report()
        row = 2 * 2 * 32 * 4
        assert told["device_bytes"] == store.nbytes == 2 * CONTEXT * row
        assert told["host_bytes"] == LAYERS * CONTEXT * row
        assert told["stored_bytes"] - before["stored_bytes"] == LAYERS * 61 * row
        # Buffers still hold two layers of the prompt, then each step asks for all others and the next step's first.
        assert told["loaded_bytes"] - before["loaded_bytes"] >= 3 * 60 * row
        assert 0 <= told["overlap"] <= 1
        assert told["copy_seconds"] > 0


def test_pages_of_the_file_leave_the_process(tmp_path: Path) -> None:
    rows = MappedRows(tmp_path / "rows", 2, (1 << 14, 4, 64), np.float32)
    source = np.ones((1 << 14, 4, 64), np.float32)
    transfers = HostTransfers(rows.drop)
    for layer in rows.layers:
        for target in layer.values():
            transfers.store(source, target)
    transfers.wait(transfers.mark())

    def mapped() -> int:
        text = Path("/proc/self/smaps").read_text() if Path("/proc/self/smaps").exists() else ""
        parts = text.split(str(tmp_path / "rows"))[1:]
        return sum(int(part.split("Rss:")[1].split()[0]) for part in parts)

    assert mapped() < 1024  # of 65,536 KiB
    np.testing.assert_array_equal(rows.layers[1]["v"], source)


@pytest.mark.parametrize("buffers", RINGS)
def test_only_the_pages_that_quest_chose_travel(
    bundle: Path, buffers: int, delay: Callable[[Generator, int], Delayed], tmp_path: Path
) -> None:
    """Whenever copies are made; rows that were not asked for are no numbers."""
    options: dict[str, Any] = {"decoding": QUEST}
    with (
        offloading(bundle, buffers, tmp_path / "rows", **options) as ours,
        Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", **options) as theirs,
    ):
        for n in (1, 16, 83):
            for policy in (FULL, SPARSE):
                expected = conversation(theirs, n, policy)
                delay(ours, n)
                np.testing.assert_array_equal(conversation(ours, n, policy), expected)
        copies = delay(ours, 0)
        ours.reset()
        ours.prefill(bundles.random_ids(100, 5), FULL)
        ours.decode(5)
        loaded = copies.loaded
        for token in range(5):
            ours.decode(token)
        row = 2 * 2 * 32 * 4
        heads = 2 if QUEST.heads == "kv" else 4
        chosen = 5 * (LAYERS - 1) * heads * QUEST.budget * row
        dense = 0 if buffers >= LAYERS else 5 * 110 * row  # the first layer, which sees everything
        assert copies.loaded - loaded <= dense + (0 if buffers >= LAYERS else chosen)


def test_pages_of_one_head_are_not_enough(
    bundle: Path, delay: Callable[[Generator, int], Delayed], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Generator.load(bundle, context=CONTEXT, threads=1, device="cpu", decoding=QUEST) as theirs:
        expected = conversation(theirs, 83, FULL)
    fetch = OffloadStore.fetch
    monkeypatch.setattr(
        OffloadStore, "fetch", lambda self, layer, pages, page_rows: fetch(self, layer, pages[:1], page_rows)
    )
    with offloading(bundle, 1, tmp_path / "rows", decoding=QUEST) as generator:
        delay(generator, 0)
        found = conversation(generator, 83, FULL)
    assert not np.array_equal(found, expected)


def test_several_conversations_wait(bundle: Path, plain: Generator, tmp_path: Path) -> None:
    with offloading(bundle, 2, tmp_path / "rows", pool_bytes=1 << 24) as generator:
        talks = [bundles.random_ids(70, seed).tolist() for seed in range(2)]
        for talk in talks:
            generator.prefill(talk, FULL)
        generator.prefill([*talks[0], 5], FULL)
        assert generator.reused == 70
        plain.reset()
        plain.prefill([*talks[0], 5], FULL)
        np.testing.assert_array_equal(generator.decode(6), plain.decode(6))


def test_a_gpu_offloads_alike(bundle: Path, dense_graphs_wait: None, tmp_path: Path) -> None:
    first, more = bundles.random_ids(24, 1).tolist(), bundles.random_ids(9, 2).tolist()

    def short(generator: Generator) -> list[np.ndarray]:
        found = [generator.prefill(first, FULL).copy(), *(generator.decode(token).copy() for token in (5, 6))]
        return [*found, generator.prefill([*first, 5, 6, *more], FULL).copy(), generator.decode(7).copy()]

    with Generator.load(bundle, context=CONTEXT, device="cuda", decoding=QUEST) as other:
        expected = short(other)
    for file in ("", str(tmp_path / "rows")):
        cache = Offload(buffers=2, file=file)
        with Generator.load(bundle, context=CONTEXT, device="cuda", cache=cache, decoding=QUEST) as generator:
            np.testing.assert_array_equal(short(generator), expected)
            assert generator.session.store.report()["overlap"] is None


def test_what_cannot_be_is_one_sentence(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs a file for the rows: write .offload file=PATH"):
        Generator.load(bundle, device="cpu", cache=Offload())
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(OutputError, match="exists already"):
        offloading(bundle, 2, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "precious"
    with pytest.raises(OutputError, match="No such file or directory"):
        offloading(bundle, 2, tmp_path / "nowhere" / "rows")
    with pytest.raises(OutputError, match="no room for"):
        MappedRows(tmp_path / "rows", 1 << 12, (1 << 20, 64, 64), np.float32)
    with pytest.raises(ConfigError, match="at least 1"):
        Offload(buffers=0)
