"""The parts of h2o-eval that need no model: contestants, needles, rows and what is made of them."""

from __future__ import annotations

import re
from math import log
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.conftest import EXAMPLE
from tests.prefill import prefill_of

from h2o_cli.eval.contestants import Kind, ablations, contestants
from h2o_cli.eval.needles import ChatFrame, NeedleMaker
from h2o_cli.eval.policies import LocalOnly
from h2o_cli.eval.results import FIGURES, Measure, Value, summarize
from h2o_cli.eval.suite import SIZES, TEXTS, Source, SuiteName
from h2o_cli.eval.texts import from_sources
from h2o_runtime.errors import ConfigError
from h2o_runtime.policies.prefill import Query, Window
from h2o_runtime.policies.prefill.h2o.policy import H2O
from h2o_runtime.text import Tokenizer
from h2o_runtime.text.chat_template import ChatTemplate

# --- Contestants ------------------------------------------------------------------------------------------


def test_who_takes_part() -> None:
    found = contestants(Query(local=32), ["score=window window=8"], ["oracle", "local"], 4096)
    assert [(one.name, one.kind) for one in found] == [
        ("full", Kind.TRUTH),
        ("h2o score=query local=32", Kind.RULE),
        ("h2o score=window local=32 window=8", Kind.VARIANT),
        ("oracle", Kind.BASELINE),
        ("local", Kind.BASELINE),
    ]
    assert found[2].policy == Window(local=32, window=8)
    assert (found[3].policy.local, found[3].policy.heavy) == (32, 448)
    assert "heads=auto" in found[1].settings


@pytest.mark.parametrize(
    "beside",
    [
        ["full"],
        ["full batch_size=512"],
        ["h2o heavy=448"],
        ["heavy=448"],
        ["batch_size=2048"],  # changes no result
        ["heavy=192", "local=32", "h2o heavy=192"],
    ],
)
def test_what_is_measured_anyway_is_not_named_beside(beside: list[str]) -> None:
    told = re.escape(f"beside {beside[-1]!r} has no effect, because it is measured already: leave it out")
    with pytest.raises(ConfigError, match=told):
        contestants(Query(), beside, [], 4096)
    assert len(contestants(Query(), beside[:-1], [], 4096)) == 1 + len(beside)


def test_ablations_change_one_setting_each() -> None:
    rule = contestants(Query(), [], [], 4096)[1]
    changed = {one.name for one in ablations(rule)}
    assert {
        "h2o score=query heavy=0",
        "h2o score=query heavy=896",
        "h2o score=query grow=never",
        "h2o score=query dense_tail=0",
    } <= changed
    assert "h2o score=query chunk_size=512" not in changed  # no larger than its memory
    assert "h2o score=query missed=2" not in changed  # no share
    assert not any("batch_size" in name for name in changed)


@pytest.mark.parametrize(
    ("settings", "n", "memory"),
    [
        ({}, 4096, 512),
        ({}, 8192, 1280),
        ({"grow": "never"}, 16384, 512),
        ({"score": "colsum", "local": 256, "heavy": 256}, 16384, 512),
    ],
)
def test_baselines_keep_as_many_keys_as_the_rule_at_the_end(
    settings: dict[str, Any], n: int, memory: int
) -> None:
    *_, oracle = contestants(prefill_of(**settings), [], ["oracle"], n)
    assert oracle.policy.memory == memory


@pytest.mark.parametrize("settings", [{}, {"score": "colsum"}, {"chunk_size": 1000}, {"dense_tail": 0}])
def test_baselines_have_the_dense_tail_of_the_rule(settings: dict[str, Any]) -> None:
    _, rule, one = contestants(prefill_of(**settings), [], ["local"], 4096)
    h2o, local = rule.policy, one.policy
    assert isinstance(h2o, H2O)
    assert isinstance(local, LocalOnly)
    tails = [local.first_of_tail(n) for n in range(1025, 3000, 7)]
    assert tails == [h2o.first_of_tail(n) for n in range(1025, 3000, 7)]
    assert local.first_of_tail(1000) == 1000


# --- Needles ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[ChatFrame(), ChatFrame("user: ", "\nassistant: ")])
def maker(request: pytest.FixtureRequest) -> NeedleMaker:
    return NeedleMaker(Tokenizer.load(EXAMPLE), 4096, request.param)


def test_needles_lie_where_they_should_in_one_document(maker: NeedleMaker) -> None:
    tokenizer, depths = Tokenizer.load(EXAMPLE), (1.0, 0.0, 0.5)
    samples = maker.needles(800, depths, seed=3)
    assert max(len(one.ids) for one in samples) == 800
    texts = [tokenizer.decode(one.ids.tolist()) for one in samples]
    (document,) = {text[: text.index("\nWhat is the special")] for text in texts}
    places = []
    for text, sample in zip(texts, samples, strict=True):
        assert text.count(sample.answer) == 1
        asked = text[len(document) :].split(" for ")[1].split(" mentioned")[0]
        assert f"for {asked} is: {sample.answer}." in document
        assert text.endswith("mentioned in the provided text is")
        assert (
            ("?\nassistant: The special" in text)
            == text.startswith("user: Some special")
            != ("? The" in text)
        )
        places.append(document.index(sample.answer) / len(document))
    assert places[1] < 0.3 < places[2] < 0.7 < places[0]
    again, other = (maker.needles(800, depths, seed=seed) for seed in (3, 4))
    assert (again[0].ids == samples[0].ids).all()
    assert other[0].answer != samples[0].answer
    with pytest.raises(ConfigError, match="at least"):
        maker.needles(100, depths, seed=3)


def test_a_prompt_is_a_turn_as_the_template_writes_it(tmp_path: Path) -> None:
    found, message = ChatFrame.of(EXAMPLE), [{"role": "user", "content": "What is it?"}]
    assert f"{found.before}What is it?{found.between}" == ChatTemplate.load(EXAMPLE).render(message)
    assert min(len(found.before), len(found.between.strip())) > 0
    assert ChatFrame.of(tmp_path) == ChatFrame("", " ")


# --- Rows and what is made of them ------------------------------------------------------------------------


def value(contestant: str, kind: Kind, measure: Measure, text: str, number: float, place: str = "") -> Value:
    settings = "full" if kind is Kind.TRUTH else "h2o local=4 heavy=8"
    return Value(contestant, kind, settings, measure, text, 64, place, number)


ROWS = [
    value("h2o", Kind.RULE, Measure.LOSS, "a", log(2.2)),
    value("h2o", Kind.RULE, Measure.LOSS, 'b, "quoted"', log(3.3)),
    value("h2o", Kind.RULE, Measure.RECALL, "a", 0.5),
    value("h2o", Kind.RULE, Measure.RECALL, "b", 0.7),
    value("full", Kind.TRUTH, Measure.LOSS, "a", log(2.0)),
    value("full", Kind.TRUTH, Measure.LOSS, 'b, "quoted"', log(3.0)),
]


def test_means_over_texts() -> None:
    truth, rule = summarize(ROWS)
    assert (truth.contestant, rule.contestant) == ("full", "h2o")
    assert truth.increase == pytest.approx(0.0)
    assert rule.increase == pytest.approx(0.1)
    assert rule.worst == pytest.approx(0.1)
    assert rule.perplexity == pytest.approx((2.2 * 3.3) ** 0.5)
    assert rule.recall == pytest.approx(0.6)
    assert (rule.decoded_increase, rule.decoded_error, rule.texts) == (None, None, 2)


def test_a_continuations_error_is_that_of_the_mean_over_texts() -> None:
    losses = {"a": (2.0, 2.2), "b": (3.0, 3.0), "c": (4.0, 4.2)}
    rows = [
        value(name, kind, Measure.DECODED, text, log(found[index]))
        for text, found in losses.items()
        for index, (name, kind) in enumerate((("full", Kind.TRUTH), ("h2o score=query local=32", Kind.RULE)))
    ]
    _, rule = summarize(rows)
    assert rule.decoded_increase == pytest.approx(0.05)  # of 10, 0 and 5 %
    assert rule.decoded_error == pytest.approx(0.05 / 3**0.5)
    assert rule.texts == 3
    (figure,) = (one for one in FIGURES if one.title == "continuation")
    assert figure.text(rule) == "+5.00% ± 2.89"


# --- Suites -----------------------------------------------------------------------------------------------


def test_suites_have_texts_that_are_long_enough_and_halves_that_share_none() -> None:
    report, tune = (TEXTS[half] for half in ("report", "tune"))
    places = [{(one.package, one.path, one.topics) for one in half} for half in (report, tune)]
    assert not places[0] & places[1]
    assert len({one.name for one in (*report, *tune)}) == len(report) + len(tune)
    longest = max(size.length for size in SIZES.values())
    for one in (*report, *tune):
        text = one.text()
        assert len(text) > 3 * (longest + 256), one.name
        assert one.text() == text
    assert list(SIZES) == list(get_args(SuiteName))


def test_a_suite_leaves_out_texts_that_are_too_short(tmp_path: Path) -> None:
    class Characters(Tokenizer):
        def __init__(self) -> None: ...

        def encode(self, text: str) -> list[int]:
            return [ord(one) for one in text]

    sources = []
    for name, text in (("a", "abcdef"), ("b", "abc"), ("c", "ghijklmn"), ("d", "opqrst")):
        (tmp_path / f"{name}.txt").write_text(text)
        sources.append(Source(name, path=str(tmp_path / f"{name}.txt"), whole=True))
    found = from_sources(sources, Characters(), 5, 1000, 2)
    assert [(one.name, "".join(map(chr, one.ids))) for one in found] == [("a", "abcde"), ("c", "ghijk")]
    assert len(from_sources(sources, Characters(), 8, 1000, 2)) == 1
