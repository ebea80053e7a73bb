"""What tests of layers share that see less than everything: policies, prompts, and generators that must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.bundles import random_ids, relative_error
from tests.family_models import VOCAB
from tests.prefill import altered

from h2o_runtime import Generator
from h2o_runtime.caches import Cache, Contiguous
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query, Subquadratic, VerticalSlash

FULL = Full(batch_size=64)
H2O = Query(chunk_size=32, batch_size=64, local=8, heavy=8, dense_tail=4)
POLICIES = {
    "full": FULL,
    "h2o": H2O,
    "colsum": altered(H2O, score="colsum"),
    "subquadratic": Subquadratic(window=16, block=8, batch_size=64),
    "minference": VerticalSlash(batch_size=64),
}
NIGHTLY = ("colsum", "minference")  # to layers with rows of their own they are what "h2o" is
EACH_POLICY = [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in POLICIES]
PROMPT = random_ids(300, 1, VOCAB).tolist()
NEXT = random_ids(40, 2, VOCAB).tolist()
Conversation = Callable[
    [Generator, PrefillPolicy[Any]], Iterator[NDArray[np.float32]]
]  # logits, one after the other


def load(bundle: Path, cache: Cache | None = None, *, context: int, **more: Any) -> Generator:
    return Generator.load(bundle, context=context, threads=1, cache=cache or Contiguous(), **more)


def agree(
    conversation: Conversation, ours: Generator, theirs: Generator, policy: PrefillPolicy[Any], share: float
) -> None:
    for one, other in zip(conversation(ours, policy), conversation(theirs, policy), strict=True):
        assert relative_error(one, other) < share
