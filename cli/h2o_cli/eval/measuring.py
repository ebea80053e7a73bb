"""The measurements of one loaded model, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import click
import numpy as np

from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.metrics import Sanity, buckets, counted, evenly, judge, standard_error, worst_runs
from h2o_cli.eval.needles import ChatFrame, NeedleMaker, answer
from h2o_cli.eval.readings import Reading, read, read_on
from h2o_cli.eval.recall import Recall, measure_recall
from h2o_cli.eval.results import Measure, Value
from h2o_cli.eval.texts import Document
from h2o_cli.progress import in_words, stages
from h2o_runtime import Generator
from h2o_runtime.text import Tokenizer

METRICS = ("decode", "perplexity", "recall", "needle")
SAMPLED = 256  # predictions of a text, and of its continuation, whose whole distributions are compared
PACE = 256  # tokens that show how fast a text is read
BEGINNING = 1024  # tokens of the first text that show whether the model is trained
PLACES = 16  # parts of a text whose losses are told one by one


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    length   tokens of a text that are prefilled
    first    the position from which tokens count
    decoded  tokens of its continuation
    metrics  of METRICS
    needles  lengths of needle prompts, and `depths` of each, `seeds` times
    """

    length: int
    first: int
    decoded: int
    metrics: tuple[str, ...]
    needles: tuple[int, ...]
    depths: tuple[float, ...]
    seeds: int

    @property
    def text_tokens(self) -> int:
        """Of a document."""
        return self.length + (self.decoded if "decode" in self.metrics else 0)

    @property
    def context(self) -> int:
        """A context that fits everything."""
        return max(self.text_tokens, max(self.needles) + 64 if self.needles else 0)

    def in_words(self, documents: Sequence[Document]) -> str:
        """What is read."""
        count = f"{len(documents)} text{'s' if len(documents) > 1 else ''}"
        names = ", ".join(document.name for document in documents)
        words = f"{self.length:,} tokens of {count} ({names})"
        if "decode" in self.metrics:
            words += f"; {self.decoded:,} tokens follow each"
        if "perplexity" in self.metrics:
            words += f"; in the prompt those from position {self.first:,} on count"
        return words


@dataclass(frozen=True)
class Job:
    """title  as progress tells it
    tokens that it reads, by which its time is estimated
    """

    title: str
    tokens: int
    run: Callable[[], list[Value]]


class Measurer:
    """Runs jobs on one loaded model."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        documents: tuple[Document, ...],
        contestants: tuple[Contestant, ...],
        extent: Extent,
        frame: ChatFrame,
    ) -> None:
        """contestants: full attention is the first. frame: of needles."""
        self._generator, self._tokenizer = generator, tokenizer
        self._documents, self._contestants, self._extent = documents, contestants, extent
        self._truth: Reading | None = None  # full attention's of the last text, or of its continuation
        self._maker = NeedleMaker(tokenizer, generator.model.vocab_size, frame)

    def run(self) -> tuple[Sanity, list[Value]]:
        """Everything, with progress on standard error."""
        jobs, values = list(self._jobs()), []
        # A guess: long texts cost more a token than their sample.
        seconds = sum(job.tokens for job in jobs) * self._seconds_a_token()
        click.echo(f"{len(jobs)} measurements, about {in_words(seconds)} or more", err=True)
        width = max((len(job.title) for job in jobs), default=8)
        with stages("reading", len(jobs) + 1, width, lines=True) as stage:
            stage("sanity")
            sanity = self.sanity()
            for job in jobs:
                stage(job.title)
                values += job.run()
        return sanity, values

    def sanity(self) -> Sanity:
        """Of the model, from the beginning of the first text."""
        ids = self._documents[0].ids[: min(self._extent.length, BEGINNING)]
        truth = read(self._generator, ids, self._contestants[0].policy, evenly(0, len(ids), SAMPLED))
        return judge(truth.nll, truth.logs, ids, self._generator.model.vocab_size)

    def _seconds_a_token(self) -> float:
        """The pace of a short reading, after which the model is warm."""
        ids, full = self._documents[0].ids[:PACE], self._contestants[0].policy
        begin = time.perf_counter()
        read(self._generator, ids, full, evenly(0, len(ids), 1))
        return (time.perf_counter() - begin) / len(ids)

    def _jobs(self) -> Iterator[Job]:
        """In an order that needs full attention's results of one text at a time."""
        metrics, length = self._extent.metrics, self._extent.length
        # For a changed setting losses suffice; slow measurements are for these contestants.
        leading = [one for one in self._contestants if one.kind is not Kind.ABLATION]
        rules = [one for one in self._contestants if one.kind is not Kind.TRUTH]
        for document in self._documents:
            for one in leading if "decode" in metrics else ():
                run = partial(self._decode, one, document)
                yield Job(f"decode {document.name} {one.name}", self._extent.text_tokens, run)
            for one in self._contestants if "perplexity" in metrics else ():
                yield Job(f"read {document.name} {one.name}", length, partial(self._read, one, document))
            if "recall" in metrics:  # of all rules at once: they share its sums
                run = partial(self._recall, rules, document)
                yield Job(f"recall {document.name}", length * len(rules), run)
        for length in self._extent.needles:
            for seed in range(self._extent.seeds):
                for one in leading:
                    run = partial(self._needle, one, length, seed)
                    yield Job(f"needle {length} {seed} {one.name}", length, run)

    def _read(self, contestant: Contestant, document: Document) -> list[Value]:
        first, length = self._extent.first, self._extent.length
        sampled = evenly(first, length, SAMPLED)
        reading = self._beside_truth(
            contestant, partial(read, self._generator, document.ids[:length], contestant.policy, sampled)
        )
        value = self._writer(contestant, document.name)
        values = [value(Measure.LOSS, float(counted(reading.nll, first).mean()))]
        for positions, losses in buckets(reading.nll, max(length // PLACES, 1)):
            values.append(value(Measure.LOSS_AT, float(losses.mean()), str(positions.start)))
        if self._truth is not None and contestant.kind is not Kind.TRUTH:
            values.append(value(Measure.DIVERGENCE, reading.divergence(self._truth)))
            values.append(value(Measure.AGREEMENT, reading.agreement(self._truth, first)))
        return values

    def _decode(self, contestant: Contestant, document: Document) -> list[Value]:
        ids, following = np.split(document.ids, [self._extent.length])
        sampled = evenly(0, len(following), SAMPLED)
        reading = self._beside_truth(
            contestant, partial(read_on, self._generator, ids, following, contestant.policy, sampled)
        )
        value = self._writer(contestant, document.name)
        values = [value(Measure.DECODED, float(reading.nll.mean()))]
        values.append(value(Measure.DECODED_SECONDS, sum(self._generator.timer.seconds.values())))
        if self._truth is not None and contestant.kind is not Kind.TRUTH:
            more = reading.nll - self._truth.nll
            if (error := standard_error(more)) is not None:
                values.append(value(Measure.DECODED_ERROR, error))
            for run in worst_runs(more) if contestant.kind is Kind.RULE else ():
                place = f"{document.name}: {self._tokenizer.decode(following[run].tolist())!r}"
                values.append(value(Measure.LOST_AT, float(more[run].mean()), place))
            values.append(value(Measure.DECODED_DIVERGENCE, reading.divergence(self._truth)))
            values.append(value(Measure.DECODED_AGREEMENT, reading.agreement(self._truth, 0)))
        return values

    def _beside_truth(self, contestant: Contestant, reading: Callable[[], Reading]) -> Reading:
        """Full attention comes first, and its reading is kept for the others."""
        if contestant.kind is not Kind.TRUTH:
            return reading()
        self._truth = None  # its distributions are large
        self._truth = reading()
        return self._truth

    def _recall(self, rules: Sequence[Contestant], document: Document) -> list[Value]:
        ids = document.ids[: self._extent.length]
        found = measure_recall(self._generator, ids, [rule.policy for rule in rules])
        return [
            value
            for rule, recall in zip(rules, found, strict=True)
            for value in _recall_values(recall, self._writer(rule, document.name))
        ]

    def _needle(self, contestant: Contestant, length: int, seed: int) -> list[Value]:
        value = self._writer(contestant, "needle", length)
        values, depths = [], self._extent.depths
        self._generator.reset()
        for depth, sample in zip(depths, self._maker.needles(length, depths, seed), strict=True):
            # A document is read once for all of its questions.
            said = answer(self._generator, self._tokenizer, sample.ids, contestant.policy, reuse=True)
            values.append(value(Measure.NEEDLE, float(sample.answer in said), f"{depth:.2f}"))
        return values

    def _writer(self, contestant: Contestant, text: str, length: int | None = None) -> Callable[..., Value]:
        def value(measure: Measure, number: float, place: str = "") -> Value:
            of = (contestant.name, contestant.kind, contestant.settings)
            return Value(*of, measure, text, length or self._extent.length, place, number)

        return value


def _recall_values(recall: Recall, value: Callable[..., Value]) -> list[Value]:
    of_best, of_past = recall.of_best, recall.of_past
    if not of_best.size:  # everything fits one chunk: nothing is left out
        return []
    found = [
        value(Measure.RECALL, float(of_best.mean())),
        value(Measure.RECALL_LOW, float(np.quantile(of_best, 0.05))),
        value(Measure.PAST, float(of_past.mean())),
    ]
    for layer, (selected, best) in enumerate(zip(recall.selected, recall.best, strict=True)):
        if (best > 0).all():
            found.append(value(Measure.RECALL_AT, float((selected / best).mean()), str(layer)))
    return found
