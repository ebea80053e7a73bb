"""The order of all work on a GPU, proved: every read and write that could meet waits for the other.

A double of the CUDA module keeps vector clocks; what a call reads and writes is in the table of operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import latent_models
from tests.bundles import export
from tests.family_models import save
from tests.order.clocks import Order, Use
from tests.order.runtime import checked
from tests.prefill import prefill_of

from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous, Offload
from h2o_runtime.devices.cuda_flow import CudaFlow
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.reading import Watch
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.policies.decode import DecodePolicy, FullDecode
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import Full

CONTEXT, BATCH = 256, 32
SMALL: dict[str, Any] = {"chunk_size": 16, "batch_size": BATCH, "local": 4, "heavy": 6}
POLICIES = {
    "full": Full(batch_size=BATCH),
    "colsum": prefill_of(**SMALL, score="colsum", dense_tail=20),
    "query": prefill_of(**SMALL, score="query", tile=8, candidates=12),
    "window": prefill_of(**SMALL, score="window", window=3, dense_tail=0),
}
CACHES = {
    "contiguous": Contiguous(),
    "float16": Contiguous(rows="float16"),
    "int8": Contiguous(rows="int8"),
    "offload": Offload(buffers=2),
}
DECODING: dict[str, DecodePolicy[Any]] = {"full": FullDecode(), "quest": Quest()}
# Statements that wait for another reason than order: they keep the host from running ahead, or end a phase.
OTHER_REASONS = ("CudaFlow._enqueue", "CudaFlow.needs", "CudaDevice.synchronize")


@dataclass(frozen=True)
class Scenario:
    bundle: str
    policy: str
    cache: str = "contiguous"
    decoding: str = "full"
    layers: dict[str, Any] = field(default_factory=dict)
    recordable: bool = True

    def __str__(self) -> str:
        words = [self.bundle, self.policy, self.cache, self.decoding, *self.layers.values()]
        return "-".join([*words, "recorded" if self.recordable else "steps"])


def _scenarios() -> Iterator[Scenario]:
    for policy in POLICIES:
        for cache in CACHES:
            for decoding in DECODING if cache != "int8" else ["full"]:
                yield Scenario("grouped", policy, cache, decoding)
        yield Scenario("grouped", policy, recordable=False)
    for policy in ("full", "colsum", "query"):
        for layers in ({"latent": "expanded"}, {"latent": "absorbed"}):
            yield Scenario("latent", policy, layers=layers)
            yield Scenario("latent", policy, layers=layers, recordable=False)
    yield Scenario("latent", "window", layers={"latent": "absorbed"})
    for policy in ("full", "query"):
        yield Scenario("states", policy)
    yield Scenario("attention-first", "query")


SCENARIOS = list(_scenarios())


@pytest.fixture(scope="session")
def folders(
    tiny_bundle: Path, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    latent = latent_models.golden_bundle(shared_folder, "v3_yarn_moe")
    bundles = {"grouped": tiny_bundle, "latent": latent}
    for name, family in (("states", "qwen3_5"), ("attention-first", "qwen3_5-attention-first")):
        folder = tmp_path_factory.mktemp(name)
        bundles[name] = export(save(folder / "checkpoint", family), folder / "bundle")
    return bundles


def work(folders: dict[str, Path], scenario: Scenario, left_out: str | None = None) -> Order:
    """Prompts of several batches, steps, a turn that goes on, a cancelled prompt, a second session."""
    policy, cache = POLICIES[scenario.policy], CACHES[scenario.cache]
    with checked(left_out, scenario.recordable) as order, loaded(folders, scenario, cache) as generator:
        ids = np.arange(120) % 100 + 2
        generator.prefill(ids, policy)
        for token in (5, 6, 7):
            generator.decode(token)
        generator.prefill(np.concatenate([ids, [5, 6, 7], ids[:60]]), policy)
        generator.decode(3)
        calls = iter(range(1000))
        with pytest.raises(Cancelled):
            generator.prefill(ids[::-1], policy, Watch(cancelled=lambda: next(calls) > 3))
        generator.prefill(ids[:70], policy)
        generator.decode(3)
        generator.logprobs(ids[:90], policy)
        with Generator(generator.loaded) as other:  # another session, whose memory is new
            other.prefill(ids, policy)
            generator.decode(3)
            other.decode(3)
            for token in (4, 5, 6):  # recorded, and replayed with the sessions in other places
                rows = [StepRow(token, one.session) for one in (generator, other, other)[: 2 + token % 2]]
                speculative = generator.loaded.forward.one_row_because(other.session) is None
                generator.loaded.forward.decode_rows(rows if speculative else rows[:2])
                generator.session.decoded([token])
                other.session.decoded([token])
    return order


@pytest.fixture(scope="session")
def with_all_waits(folders: dict[str, Path]) -> Callable[[str], Order]:
    """The order of a scenario's work, by the scenario's name; both proofs begin with it."""
    by_name = {str(scenario): scenario for scenario in SCENARIOS}
    return functools.cache(lambda name: work(folders, by_name[name]))


def loaded(folders: dict[str, Path], scenario: Scenario, cache: Cache) -> Generator:
    return Generator.load(
        folders[scenario.bundle],
        context=CONTEXT,
        device="cuda",
        cache=cache,
        decoding=DECODING[scenario.decoding],
        layers=scenario.layers,
    )


@pytest.mark.parametrize("name", [str(scenario) for scenario in SCENARIOS])
def test_all_uses_of_the_same_bytes_are_in_order(name: str, with_all_waits: Callable[[str], Order]) -> None:
    order = with_all_waits(name)
    assert order.races == []
    assert order.operations > 100


def test_each_wait_is_needed(folders: dict[str, Path], with_all_waits: Callable[[str], Order]) -> None:
    """Without any one of the statements that wait for order's sake, some scenario has a race."""
    at: dict[str, list[Scenario]] = {}
    for scenario in SCENARIOS:
        for place in with_all_waits(str(scenario)).places:
            if not place.startswith(OTHER_REASONS):
                at.setdefault(place, []).append(scenario)
    needed = {place for place in at if any(work(folders, each, place).races for each in at[place])}
    assert set(at) - needed == set()
    assert len(needed) >= 8


def test_a_lane_that_does_not_wait_for_a_dense_graph_is_found(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same by a change of the runtime itself: attention a tile too early."""
    needs = CudaFlow.needs
    monkeypatch.setattr(CudaFlow, "needs", lambda self, stop: needs(self, max(stop - BATCH, 1)))
    assert any("does not wait" in race for race in work(folders, Scenario("grouped", "full")).races)


def test_bytes_beyond_an_allocation_are_told() -> None:
    order = Order()
    address, stream = order.allocate(64), order.new_stream()
    order.run(stream, "a copy", [Use(address + 32, address + 65, writes=True)])
    assert order.races == ["a copy writes what it copies beyond what was allocated"]


def test_streams_are_not_in_order_of_themselves() -> None:
    order = Order()
    use = Use(address := order.allocate(64), address + 64, writes=True)
    one, two = order.new_stream(), order.new_stream()
    order.run(one, "the first", [use])
    order.wait(two, order.moment(one))
    order.run(two, "the second", [use])
    assert order.races == []
    order.run(one, "the third", [use])
    assert order.races == [
        "the third writes what it copies and does not wait for the second, which writes what it copies"
    ]
