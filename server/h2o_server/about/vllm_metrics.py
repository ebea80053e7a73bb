"""vLLM's metric names, for routers and dashboards that expect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
        read, cached, written = (
            counter.collect()[0].samples[0].value
            for counter in (
                self.metrics.prompt_tokens,
                self.metrics.cached_tokens,
                self.metrics.predicted_tokens,
            )
        )
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
