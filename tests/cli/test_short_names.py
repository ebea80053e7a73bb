"""Names of policies in tables."""

from __future__ import annotations

from h2o_cli.short_names import short_names


def test_a_row_shows_what_distinguishes_it() -> None:
    rule = "h2o score=query chunk_size=64 local=8 heavy=24"
    more = rule.replace("heavy=24", "heavy=48")
    without = rule.replace(" local=8", "")
    assert short_names([rule, more]) == {rule: "h2o heavy=24 …", more: "h2o heavy=48 …"}
    assert short_names([rule, without]) == {rule: "h2o local=8 …", without: "h2o …"}


def test_other_names_stay() -> None:
    other = "minference vertical=100 slash=2000"
    assert short_names(["full", "h2o heavy=24", other, other]) == {
        "full": "full",
        "h2o heavy=24": "h2o heavy=24",
        other: "minference …",
    }
