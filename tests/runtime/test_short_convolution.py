"""Short convolutions between layers of attention: sessions, pieces, slots and saved caches carry their few rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, save
from tests.runtime import layer_cases
from tests.runtime.layer_cases import FULL, NEXT, PROMPT

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.execution.step_rows import StepRow
from h2o_runtime.names import Speculation
from h2o_runtime.sessions.layer_states import BLOCK

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("models_stay_loaded")]

CONTEXT = 1400
load = partial(layer_cases.load, context=CONTEXT)
EXACT = 1e-5


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of attention, and mixtures of experts behind three of its five layers."""
    folder = tmp_path_factory.mktemp("convolutions")
    return export(save(folder / "checkpoint", "lfm2_moe"), folder / "bundle")


def expected(generator: Generator, ids: list[int]) -> np.ndarray:
    """Logits of the last token, read at once from the start."""
    return np.array(generator.prefill(ids, FULL, reuse=False))


@pytest.mark.parametrize("cache", [Paged(), Contiguous(rows="float16")], ids=["paged", "float16"])
def test_a_conversation_goes_on_where_its_rows_are_known(bundle: Path, cache: Cache) -> None:
    near = EXACT if cache == Paged() else 2e-3
    long = random_ids(1200, 4, VOCAB).tolist()
    with load(bundle, cache) as generator, load(bundle) as fresh:
        for ids, reused in ((PROMPT, 0), ([*PROMPT, *NEXT], 300), (long, 0), ([*long[:1100], *NEXT], BLOCK)):
            assert relative_error(generator.prefill(ids, FULL), expected(fresh, ids)) < near
            assert generator.reused == reused
        assert relative_error(generator.decode(3), expected(fresh, [*ids, 3])) < near


def test_sessions_decode_side_by_side(bundle: Path) -> None:
    """A step of two sessions' rows, each with the rows before it of its own."""
    texts = [PROMPT[:70], [*PROMPT[70:200], 5]]
    with load(bundle, pool_bytes=1 << 26, slots=2) as generator, load(bundle) as fresh:
        both = (generator, *generator.others)
        for one, ids in zip(both, texts, strict=True):
            one.prefill(ids, FULL)
        for token in (4, 9, 11):
            logits = generator.loaded.forward.decode_rows([StepRow(token, one.session) for one in both])
            for one, ids, row in zip(both, texts, logits, strict=True):
                one.session.decoded([token])
                ids.append(token)
                assert relative_error(row, expected(fresh, ids)) < EXACT


def test_answers_that_are_read_ahead_are_those_of_plain_decode(bundle: Path) -> None:
    with load(bundle, dense_form="native") as generator:

        def answer(speculate: Speculation) -> list[int]:
            events = generator.generate(PROMPT[:5] * 12, 60, FULL, reuse=False, speculate=speculate)
            return [event.sampled.token for event in events if isinstance(event, TokenGenerated)]

        assert generator.speculation("lookup") == ("lookup", None)
        assert answer("lookup") == answer("off")


def test_function_bodies_agree(bundle: Path) -> None:
    with load(bundle, attention="functions") as generator, load(bundle) as other:
        assert relative_error(generator.prefill(PROMPT[:70], FULL), other.prefill(PROMPT[:70], FULL)) < 1e-4
        assert relative_error(generator.decode(4), other.decode(4)) < 1e-4
