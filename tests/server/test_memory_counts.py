"""The memory view's numbers against plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from h2o_runtime.policies.prefill import Query
from h2o_server.about.memory_view import MemorySnapshot

CONFIG = Query(chunk_size=64, local=8, heavy=24, dense_tail=0)


@pytest.fixture
def snapshot(tiny_generator: Any, heldout_ids: Any) -> MemorySnapshot:
    ids = heldout_ids[:300]
    tiny_generator.prefill(ids, CONFIG)
    return MemorySnapshot.take("answer", tuple(ids.tolist()), tiny_generator)


def test_counts_are_those_of_plain_python(snapshot: MemorySnapshot) -> None:
    boundaries, layers, heads, size = snapshot.sets.shape
    assert (boundaries, layers, heads, size) == (4, 6, 4, 32)
    for boundary in range(boundaries):
        for layer in range(layers):
            plain = [0] * 300
            for head in snapshot.sets[boundary, layer].tolist():
                for position in head:
                    plain[position] += 1
            assert snapshot.counts(boundary, layer) == plain


def test_the_last_boundary_is_the_generators_memory(snapshot: MemorySnapshot, tiny_generator: Any) -> None:
    np.testing.assert_array_equal(snapshot.sets[-1], np.stack(tiny_generator.report().last))
