"""What a run says on standard error before its minutes of work."""

from __future__ import annotations

from collections.abc import Sequence

import click

from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.plan import Extent, Job, Measurer
from h2o_cli.eval.texts import Document
from h2o_cli.progress import in_words


def announce_subject(
    contestants: Sequence[Contestant], documents: Sequence[Document], extent: Extent, manual: bool
) -> None:
    """What is compared, and on which texts. manual: parts of Python's manual, because the user named no text."""
    rule = next(contestant.name for contestant in contestants if contestant.kind is Kind.RULE)
    kinds = (Kind.TRUTH, Kind.VARIANT, Kind.BASELINE)
    beside = ", ".join(contestant.name for contestant in contestants if contestant.kind in kinds)
    changed = sum(contestant.kind is Kind.ABLATION for contestant in contestants)
    more = f", and {changed} times with one setting changed" if changed else ""
    texts = ", ".join(document.name for document in documents)
    own = " (--text FILE takes your own)" if manual else ""
    click.echo(f"measuring {rule} beside {beside}{more}", err=True)
    click.echo(f"texts of {extent.text_tokens:,} tokens: {texts}{own}", err=True)


def announce_time(jobs: Sequence[Job], measurer: Measurer) -> None:
    """How many measurements there are, and a guess of their time: long texts cost more a token than its sample."""
    seconds = sum(job.tokens for job in jobs) * measurer.seconds_a_token()
    click.echo(f"{len(jobs)} measurements, about {in_words(seconds)} or more", err=True)
