"""What a cache evicted and what it moved is told wherever the server tells of itself."""

from __future__ import annotations

from pathlib import Path

from tests.server.conftest import Serve


def test_every_report_tells_what_was_evicted(serve: Serve) -> None:
    server = serve("--cache", "evicting tokens=64", "--prefill", "full")
    body = {"prompt": "The module defines a class. " * 30, "max_tokens": 8}
    answer = server.post("/v1/completions", body).json()
    read = answer["usage"]["prompt_tokens"]
    told = answer["h2o"]
    assert (told["exact"], told["forgotten_tokens"]) == (False, read + 7 - 64)
    assert told["summary"] == f"Full attention, {read + 7 - 64} tokens evicted"
    assert f"h2o_forgotten_tokens {read + 7 - 64}.0" in server.get("/metrics").text
    assert server.get("/props").json()["cache"]["tokens"] == 64
    short = server.post("/v1/completions", {"prompt": "The module", "max_tokens": 2}).json()["h2o"]
    assert (short["exact"], short["summary"]) == (True, "Full attention")


def test_metrics_tell_what_was_moved(serve: Serve, tmp_path: Path) -> None:
    server = serve("--cache", f"offload file={tmp_path / 'rows'}", "--ctx-size", 512)
    before = server.metric("h2o_cache_loaded_bytes")  # loading has read a few tokens
    server.complete("The module defines a class. " * 10)
    host, stored = server.metric("h2o_cache_host_bytes"), server.metric("h2o_cache_stored_bytes")
    assert 0 < stored < host
    assert server.metric("h2o_cache_loaded_bytes") > before
    assert 0 < server.metric("h2o_cache_bytes") == server.metric("h2o_cache_device_bytes") < host
