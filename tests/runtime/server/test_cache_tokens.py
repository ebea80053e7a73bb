"""--cache-tokens: that something was forgotten is told wherever the server tells of itself."""

from __future__ import annotations

from tests.runtime.server.conftest import Serve


def test_every_report_tells_what_was_forgotten(serve: Serve) -> None:
    server = serve("--cache-tokens", 64, "--prefill", "full")
    body = {"prompt": "The module defines a class. " * 30, "max_tokens": 8}
    answer = server.post("/v1/completions", body).json()
    read = answer["usage"]["prompt_tokens"]
    told = answer["h2o"]
    assert (told["exact"], told["forgotten_tokens"]) == (False, read + 7 - 64)
    assert told["summary"] == f"Full attention, {read + 7 - 64} tokens forgotten"
    assert f"h2o_forgotten_tokens {read + 7 - 64}.0" in server.get("/metrics").text
    assert server.get("/props").json()["cache"]["cache_tokens"] == 64
    short = server.post("/v1/completions", {"prompt": "The module", "max_tokens": 2}).json()["h2o"]
    assert (short["exact"], short["summary"]) == (True, "Full attention")
