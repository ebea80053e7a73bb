"""Answers with drafts by the model's own layer, in all that sessions do: in turns, stopped, saved, gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.bundles import export, random_ids
from tests.drafting import DRAFTING, cheap, save_drafting
from tests.family_models import VOCAB

from h2o_runtime import Generator
from h2o_runtime.answers.events import TokenGenerated
from h2o_runtime.errors import Cancelled
from h2o_runtime.execution.answer_steps import decode_together
from h2o_runtime.execution.reading import Watch
from h2o_runtime.names import Speculation
from h2o_runtime.policies.prefill import Full
from h2o_runtime.sessions.saved import SavedSession, save_session

FULL = Full(batch_size=32)
PROMPTS = [random_ids(length, length, VOCAB).tolist() for length in (40, 70)]
MOST = 30


NIGHTLY = ("qwen3_5_moe", "glm4_moe_lite")  # others have states, or latents and experts
EACH_FAMILY = [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in DRAFTING]


@pytest.fixture(scope="module", params=EACH_FAMILY)
def generator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Generator]:
    folder = tmp_path_factory.mktemp("drafting")
    bundle = export(save_drafting(folder / "checkpoint", right=0.02, family=request.param), folder / "bundle")
    with Generator.load(bundle, context=256, threads=1, device="cpu", dense_form="native", slots=2) as loaded:
        cheap(loaded)
        yield loaded


def answer(generator: Generator, prompt: list[int], speculate: Speculation, reuse: bool = False) -> list[int]:
    events = generator.generate(prompt, MOST, FULL, reuse=reuse, speculate=speculate)
    return [event.sampled.token for event in events if isinstance(event, TokenGenerated)]


def test_a_conversation_goes_on_from_an_answer_with_drafts(generator: Generator) -> None:
    found = []
    for speculate in ("off", "mtp"):
        generator.reset()
        first = answer(generator, PROMPTS[0], speculate)
        longer = [*PROMPTS[0], *first, 5, 6, 7]
        found.append((first, answer(generator, longer, speculate, reuse=True), generator.reused))
    assert found[0] == found[1]
    assert found[0][2] > len(PROMPTS[0])


def test_answers_in_turns_do_not_disturb_each_other(generator: Generator) -> None:
    slots = (generator, *generator.others)
    alone = [answer(slot, prompt, "off") for slot, prompt in zip(slots, PROMPTS, strict=True)]
    both = [
        slot.generate(prompt, MOST, FULL, reuse=False, speculate="mtp")
        for slot, prompt in zip(slots, PROMPTS, strict=True)
    ]
    together: list[list[int]] = [[], []]
    for pair in zip(*both, strict=True):
        for i, event in enumerate(pair):
            if isinstance(event, TokenGenerated):
                together[i].append(event.sampled.token)
    assert together == alone


def test_a_step_of_several_sessions_and_rows_is_that_of_single_ones(generator: Generator) -> None:
    """Bits of all rows, and what a session computes after its last ones were taken back."""
    slots, tokens = (generator, *generator.others), ([3, 9, 4], [8, 5])
    single = []
    for slot, prompt, new in zip(slots, PROMPTS, tokens, strict=True):
        slot.reset()
        slot.prefill(prompt, FULL)
        single.append(np.stack([slot.decode(token) for token in (*new, 6)]))
        slot.reset()
        slot.prefill(prompt, FULL)
    steps = [(slot.session, new) for slot, new in zip(slots, tokens, strict=True)]
    for slot, rows, expected, new in zip(
        slots, list(decode_together(generator.loaded.forward, steps)), single, tokens, strict=True
    ):
        np.testing.assert_array_equal(rows, expected[: len(new)])
        slot.session.decoded(new[:1])
        np.testing.assert_array_equal(slot.decode(new[1]), expected[1])


def test_a_stopped_prompt_and_an_answer_that_is_left_change_nothing(generator: Generator) -> None:
    expected = answer(generator, PROMPTS[1], "off")
    generator.reset()
    asked = iter(range(1000))
    with pytest.raises(Cancelled):
        generator.prefill(PROMPTS[1], FULL, Watch(cancelled=lambda: next(asked) >= 2))
    assert answer(generator, PROMPTS[1], "mtp", reuse=True) == expected
    with closing(generator.generate(PROMPTS[0], MOST, FULL, speculate="mtp")) as events:
        for _ in range(4):
            next(events)  # type: ignore[call-overload]
    assert answer(generator, PROMPTS[1], "mtp", reuse=True) == expected


def test_a_saved_session_goes_on(generator: Generator, tmp_path: Path) -> None:
    (other,) = generator.others
    expected = answer(generator, PROMPTS[1], "off")
    generator.reset()
    generator.prefill(PROMPTS[1][:-3], FULL)
    save_session(generator.session, tmp_path / "session")
    other.reset()
    SavedSession.open(tmp_path / "session").load_into(other.session, FULL)
    assert answer(other, PROMPTS[1], "mtp", reuse=True) == expected
    assert other.reused == len(PROMPTS[1]) - 3
