"""vLLM's metric names, for routers and dashboards that expect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from h2o_server.about.metrics import Metrics


@dataclass(frozen=True)
class VllmNames(Collector):
    """running, waiting: numbers of requests. usage: the share of the cache that running requests use, from 0 to
    1."""

    model: str
    metrics: Metrics
    running: Callable[[], float]
    waiting: Callable[[], float]
    usage: Callable[[], float]

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "Requests that are being served", self.running())
        yield self._gauge("num_requests_waiting", "Requests that wait for a slot", self.waiting())
        yield self._gauge("kv_cache_usage_perc", "Share of the cache in use, from 0 to 1", self.usage())
        metrics = self.metrics
        read, cached = _value(metrics.prompt_tokens), _value(metrics.cached_tokens)
        written = _value(metrics.predicted_tokens)
        yield self._counter("prefix_cache_queries", "Prompt tokens that were asked for", read + cached)
        yield self._counter("prefix_cache_hits", "Of those the ones that the cache held", cached)
        yield self._counter("prompt_tokens", "Prompt tokens", read + cached)
        yield self._counter("generation_tokens", "Tokens generated", written)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self.model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        family.add_metric([self.model], value)
        return family


def _value(counter: Counter) -> float:
    (family,) = counter.collect()
    return float(family.samples[0].value)
