"""The measurements, divided into jobs that run once each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import numpy as np

from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.contestants import Contestant, Kind
from h2o_cli.eval.metrics import buckets, counted, evenly
from h2o_cli.eval.readings import Reading, read, read_on, read_up_to
from h2o_cli.eval.recall import Recall, measure_recall
from h2o_cli.eval.sanity import Sanity, judge
from h2o_cli.eval.tasks import Question, Sample, TaskMaker, score
from h2o_cli.eval.texts import Document
from h2o_cli.eval.values import Measure, Value
from h2o_runtime import Generator
from h2o_runtime.text import Tokenizer

METRICS = ("decode", "perplexity", "causal", "recall", "needle", "tasks")
SAMPLED = 256  # predictions of a text, and of its continuation, whose whole distributions are compared
ENDS = 64  # prompts of a text, each of which ends before a token whose loss is told
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
    question where a needle's question stands
    tasks    names of RULER's tasks, at the lengths of needles
    """

    length: int
    first: int
    decoded: int
    metrics: tuple[str, ...]
    needles: tuple[int, ...]
    depths: tuple[float, ...]
    seeds: int
    question: Question
    tasks: tuple[str, ...]

    @property
    def asks(self) -> bool:
        """Whether there are prompts with a question."""
        return bool({"needle", "tasks"} & set(self.metrics))

    @property
    def text_tokens(self) -> int:
        """Of a document."""
        return self.length + (self.decoded if "decode" in self.metrics else 0)

    @property
    def context(self) -> int:
        """A context that fits everything."""
        asked = max(self.needles, default=0) + 64 if self.asks else 0
        return max(self.text_tokens, asked)


@dataclass(frozen=True)
class Job:
    """title  as progress tells it
    names  of what it measures, unique in a run: a job of several contestants has several
    tokens that it reads, by which its time is estimated
    """

    title: str
    names: frozenset[str]
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
        seen: Callable[[Contestant, Document, Reading], None] = lambda contestant, document, reading: None,
    ) -> None:
        """contestants: full attention is the first. frame: of tasks and needles. seen: called with every
        reading, while the cache still has it.
        """
        self._generator, self._tokenizer = generator, tokenizer
        self._documents, self._contestants, self._extent = documents, contestants, extent
        self._seen = seen
        self._truth: tuple[str, Reading] | None = None
        self._continued: tuple[str, Reading] | None = None  # full attention's continuation
        self._maker = TaskMaker(tokenizer, generator.model.vocab_size, frame)

    def sanity(self) -> Sanity:
        """Of the model, from the beginning of the first text."""
        ids = self._documents[0].ids[: min(self._extent.length, BEGINNING)]
        sampled = evenly(0, len(ids), SAMPLED)
        truth = read(self._generator, ids, self._contestants[0].policy, sampled)
        return judge(truth, ids, self._generator.model.vocab_size)

    def seconds_a_token(self) -> float:
        """The pace of a short reading, after which the model is warm."""
        ids, full = self._documents[0].ids[:PACE], self._contestants[0].policy
        begin = time.perf_counter()
        read(self._generator, ids, full, evenly(0, len(ids), 1))
        return (time.perf_counter() - begin) / len(ids)

    def jobs(self, done: AbstractSet[str] = frozenset()) -> list[Job]:
        """The open jobs, in an order that needs full attention's results of one text at a time."""
        of_texts = [job for document in self._documents for job in self._text_jobs(document, done)]
        of_prompts = [job for length in self._extent.needles for job in self._prompt_jobs(length)]
        return [job for job in (*of_texts, *of_prompts) if not job.names <= done]

    @property
    def _leading(self) -> tuple[Contestant, ...]:
        """For a changed setting losses suffice; slow measurements are for these contestants."""
        return tuple(contestant for contestant in self._contestants if contestant.kind is not Kind.ABLATION)

    def _text_jobs(self, document: Document, done: AbstractSet[str]) -> Iterator[Job]:
        metrics, length = self._extent.metrics, self._extent.length
        if "decode" in metrics:
            for contestant in self._leading:
                run = partial(self._decode, contestant, document)
                yield self._job("decode", contestant, document.name, self._extent.text_tokens, run)
        if "perplexity" in metrics:
            for contestant in self._contestants:
                run = partial(self._read, contestant, document)
                yield self._job("read", contestant, document.name, length, run)
        if "causal" in metrics:
            for contestant in self._leading:
                if contestant.kind is Kind.BASELINE:
                    continue  # it remembers nothing that a shorter prompt could go on from
                run = partial(self._causal, contestant, document)
                yield self._job("causal", contestant, document.name, length, run)
        rules = tuple(contestant for contestant in self._contestants if contestant.kind is not Kind.TRUTH)
        if "recall" in metrics and rules:  # of all rules at once: they share its sums
            missing = tuple(rule for rule in rules if f"recall {document.name} {rule.name}" not in done)
            names = frozenset(f"recall {document.name} {rule.name}" for rule in missing)
            run = partial(self._recall, missing, document)
            yield Job(f"recall {document.name}", names, length * len(missing), run)

    def _prompt_jobs(self, length: int) -> Iterator[Job]:
        """Contestants of one prompt come together, so that a stopped run can be read."""
        metrics, seeds = self._extent.metrics, self._extent.seeds
        readings = 1 if self._extent.question == "end" else len(self._extent.depths)
        for seed in range(seeds) if "needle" in metrics else ():
            for contestant in self._leading:
                run = partial(self._needle, contestant, length, seed)
                yield self._job("needle", contestant, f"{length} {seed}", length * readings, run)
        for task in self._extent.tasks if "tasks" in metrics else ():
            for contestant in self._leading:
                run = partial(self._task, contestant, length, task)
                yield self._job(task, contestant, str(length), length * seeds, run)

    def _job(
        self, kind: str, contestant: Contestant, where: str, tokens: int, run: Callable[[], list[Value]]
    ) -> Job:
        name = f"{kind} {where} {contestant.name}"
        return Job(name, frozenset([name]), tokens, run)

    def _read(self, contestant: Contestant, document: Document) -> list[Value]:
        truth = self._read_truth(document)
        reading = truth if contestant.kind is Kind.TRUTH else self._reading(contestant, document)
        first, length = self._extent.first, self._extent.length
        value = _writer(f"read {document.name}", contestant, document.name, length)
        values = [value(Measure.LOSS, float(counted(reading.nll, first).mean()))]
        for positions, losses in buckets(reading.nll, max(length // PLACES, 1)):
            values.append(value(Measure.LOSS_AT, float(losses.mean()), str(positions.start)))
        if contestant.kind is not Kind.TRUTH:
            values.append(value(Measure.DIVERGENCE, float(reading.divergence(truth).mean())))
            values.append(value(Measure.AGREEMENT, reading.agreement(truth, first)))
        return values

    def _decode(self, contestant: Contestant, document: Document) -> list[Value]:
        truth = self._continue_truth(document)
        exact = contestant.kind is Kind.TRUTH
        reading = truth if exact else self._continuation(contestant, document)
        value = _writer(f"decode {document.name}", contestant, document.name, self._extent.length)
        values = [value(Measure.DECODED, float(reading.nll.mean()))]
        if not exact:
            values.append(value(Measure.DECODED_DIVERGENCE, float(reading.divergence(truth).mean())))
            values.append(value(Measure.DECODED_AGREEMENT, reading.agreement(truth, 0)))
        return values

    def _causal(self, contestant: Contestant, document: Document) -> list[Value]:
        length = self._extent.length
        at = evenly(self._extent.first - 1, length - 1, ENDS)
        nll = read_up_to(self._generator, document.ids[:length], at, contestant.policy)
        value = _writer(f"causal {document.name}", contestant, document.name, length)
        return [value(Measure.CAUSAL, float(nll.mean()))]

    def _recall(self, rules: tuple[Contestant, ...], document: Document) -> list[Value]:
        ids = document.ids[: self._extent.length]
        found = measure_recall(self._generator, ids, [rule.policy for rule in rules])
        return [
            value
            for rule, recall in zip(rules, found, strict=True)
            for value in _recall_values(
                recall, _writer(f"recall {document.name}", rule, document.name, len(ids))
            )
        ]

    def _needle(self, contestant: Contestant, length: int, seed: int) -> list[Value]:
        value = _writer(f"needle {length} {seed}", contestant, "needle", length)
        values = []
        self._generator.reset()
        for depth, sample in zip(self._extent.depths, self._asked(length, seed), strict=True):
            # A document is read once for all of its questions.
            hit = score(self._generator, self._tokenizer, sample, contestant.policy, reuse=True)
            values.append(value(Measure.NEEDLE, hit, f"{depth:.2f}"))
        return values

    def _asked(self, length: int, seed: int) -> list[Sample]:
        """A prompt for each depth. Behind a document there are questions for all of its facts."""
        depths, where = self._extent.depths, self._extent.question
        if where == "end":
            return self._maker.needles(length, depths, seed)
        return [
            self._maker.needle(length, depth, 1000 * seed + round(100 * depth), where == "middle")
            for depth in depths
        ]

    def _task(self, contestant: Contestant, length: int, task: str) -> list[Value]:
        samples = [self._maker.make(task, length, seed) for seed in range(self._extent.seeds)]
        hits = [score(self._generator, self._tokenizer, sample, contestant.policy) for sample in samples]
        value = _writer(f"{task} {length}", contestant, "tasks", length)
        return [value(Measure.TASK, hit, task) for hit in hits]

    def _read_truth(self, document: Document) -> Reading:
        if self._truth is None or self._truth[0] != document.name:
            self._truth = None  # its distributions are large
            self._truth = document.name, self._reading(self._contestants[0], document)
        return self._truth[1]

    def _continue_truth(self, document: Document) -> Reading:
        if self._continued is None or self._continued[0] != document.name:
            self._continued = None  # its distributions are large
            self._continued = document.name, self._continuation(self._contestants[0], document)
        return self._continued[1]

    def _continuation(self, contestant: Contestant, document: Document) -> Reading:
        n, decoded = self._extent.length, self._extent.decoded
        following = document.ids[n : n + decoded]
        sampled = evenly(0, decoded, SAMPLED)
        return read_on(self._generator, document.ids[:n], following, contestant.policy, sampled)

    def _reading(self, contestant: Contestant, document: Document) -> Reading:
        n, first = self._extent.length, self._extent.first
        sampled = evenly(first, n, SAMPLED)
        reading = read(self._generator, document.ids[:n], contestant.policy, sampled)
        self._seen(contestant, document, reading)
        return reading


Writer = Callable[..., Value]


def _writer(job: str, contestant: Contestant, text: str, length: int) -> Writer:
    def value(measure: Measure, number: float, place: str = "") -> Value:
        name = f"{job} {contestant.name}"
        return Value(
            name,
            contestant.name,
            contestant.kind.value,
            contestant.settings,
            measure,
            text,
            length,
            place,
            number,
        )

    return value


def _recall_values(recall: Recall, value: Writer) -> list[Value]:
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
