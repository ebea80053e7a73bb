"""The metrics of /metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from h2o_runtime.answers.completion import Completion

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """One server's metrics. An answer is counted before its last byte is sent."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=registry)

        self.prompt_tokens = counter("h2o_prompt_tokens", "Prompt tokens that were run")
        self.prompt_seconds = counter("h2o_prompt_seconds", "Seconds of prefill")
        self.cached_tokens = counter("h2o_prompt_cached_tokens", "Prompt tokens that the cache held")
        self.predicted_tokens = counter("h2o_predicted_tokens", "Tokens generated")
        self.predicted_seconds = counter("h2o_predicted_seconds", "Seconds of decode")
        self.drafted_tokens = counter("h2o_drafted_tokens", "Tokens that were drafted and verified")
        self.accepted_tokens = counter("h2o_accepted_tokens", "Drafted tokens that are in an answer")
        self.prompt_rate = Gauge(
            "h2o_prompt_tokens_per_second", "Prefill rate of the last request", registry=registry
        )
        self.predicted_rate = Gauge(
            "h2o_predicted_tokens_per_second", "Decode rate of the last request", registry=registry
        )
        self.first_token = Histogram(
            "h2o_time_to_first_token_seconds",
            "Prefill and first token, without the wait in the queue",
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_wait = Histogram(
            "h2o_queue_wait_seconds", "From the ticket to the turn", buckets=_SECONDS, registry=registry
        )
        self.requests = Counter(
            "h2o_requests",
            "Requests for an answer, by how they ended, and all that were invalid",
            ["outcome"],
            registry=registry,
        )

        self._seen: dict[str, float | None] = {}
        text = "Share of the last prompt's attention, as in the answer's h2o.seen"
        self.gauges("h2o_prompt_attention_", text, lambda: self._seen)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is looked up on each scrape."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def gauges(self, prefix: str, text: str, values: Callable[[], Mapping[str, float | None]]) -> None:
        """Values whose names are only known at each scrape; None is left out."""

        def families() -> Iterator[GaugeMetricFamily]:
            for name, value in values().items():
                if value is not None:
                    yield GaugeMetricFamily(f"{prefix}{name}", text, value=value)

        self.registry.register(_PerScrape(families))

    def by_slot(self, name: str, text: str, values: Callable[[], Sequence[float]]) -> None:
        """A value for each slot, looked up on each scrape."""

        def families() -> Iterator[GaugeMetricFamily]:
            family = GaugeMetricFamily(name, text, labels=["slot"])
            for slot, value in enumerate(values()):
                family.add_metric([str(slot)], value)
            yield family

        self.registry.register(_PerScrape(families))

    def finished(self, outcome: str) -> None:
        """Count a request. outcome: stop, length, cancelled, failed; refused, left; invalid where it was answered
        with a 4xx before it had jobs, whatever its path.
        """
        self.requests.labels(outcome).inc()

    def worked(self, completion: Completion) -> None:
        """Count the inference thread's work for one answer."""
        t = completion.timings
        self.prompt_tokens.inc(t.prompt_n)
        self.cached_tokens.inc(t.cache_n)
        self.prompt_seconds.inc(t.prompt_ms / 1e3)
        self.predicted_tokens.inc(t.predicted_n)
        self.predicted_seconds.inc(t.predicted_ms / 1e3)
        self.drafted_tokens.inc(t.draft_n)
        self.accepted_tokens.inc(t.draft_n_accepted)
        if completion.seen is not None:
            self._seen = dict(asdict(completion.seen))
        if t.prompt_n:
            self.prompt_rate.set(t.prompt_per_second)
        if t.predicted_n > 1:
            self.predicted_rate.set(t.predicted_per_second)
        if t.predicted_n:
            self.first_token.observe(t.prompt_ms / 1e3)

    def page(self) -> bytes:
        return generate_latest(self.registry)


@dataclass(frozen=True)
class _PerScrape(Collector):
    families: Callable[[], Iterator[GaugeMetricFamily]]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self.families()


@dataclass(frozen=True)
class VllmNames(Collector):
    """vLLM's metric names, for routers and dashboards that expect them.

    running, waiting: numbers of requests. usage: the share of the cache that running requests use, from 0 to
    1."""

    model: str
    metrics: Metrics
    running: Callable[[], float]
    waiting: Callable[[], float]
    usage: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        counters = (self.metrics.prompt_tokens, self.metrics.cached_tokens, self.metrics.predicted_tokens)
        read, cached, written = (next(iter(one.collect())).samples[0].value for one in counters)
        for kind, name, text, value in (
            (GaugeMetricFamily, "num_requests_running", "Requests that are being served", self.running()),
            (GaugeMetricFamily, "num_requests_waiting", "Requests that wait for a slot", self.waiting()),
            (
                GaugeMetricFamily,
                "kv_cache_usage_perc",
                "Share of the cache in use, from 0 to 1",
                self.usage(),
            ),
            (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens that were asked for", read + cached),
            (CounterMetricFamily, "prefix_cache_hits", "Of those the ones that the cache held", cached),
            (CounterMetricFamily, "prompt_tokens", "Prompt tokens", read + cached),
            (CounterMetricFamily, "generation_tokens", "Tokens generated", written),
        ):
            family = kind(f"vllm:{name}", text, labels=["model_name"])
            family.add_metric([self.model], value)
            yield family
