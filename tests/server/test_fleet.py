"""What routers ask of a server, and how several servers behind one behave."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from tests.server.conftest import Serve
from tests.server.running import Server, request, wait_for

REQUESTS = 5


@contextlib.contextmanager
def busy(server: Server) -> Iterator[None]:
    """Several requests at once, of which one is served and all others wait."""
    body = json.dumps({"prompt": [5], "max_tokens": 400, "ignore_eos": True}).encode()
    with contextlib.ExitStack() as clients:  # who leave at the end
        for _ in range(REQUESTS):
            clients.enter_context(server.connection()).sendall(request("POST", "/v1/completions", body))
        wait_for(lambda: server.metric("h2o_queue_length") > 2 and server.metric("h2o_busy") == 1)
        yield
    server.wait_until_idle()


def test_how_busy_a_server_is(server: Server) -> None:
    server.wait_until_idle()
    quiet = server.get("/v1/loads").json()
    (load,) = quiet["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]) == (0, 0, 0.0)
    (slot,) = server.get("/slots").json()
    assert (slot["id"], slot["n_ctx"], slot["is_processing"]) == (0, 512, False)
    with busy(server):
        (load,) = server.get("/v1/loads?include=core,queues").json()["loads"]
        (older,) = server.get("/get_load").json()
        (slot,) = server.get("/slots").json()
    assert load["num_running_reqs"] == 1
    assert 0 < load["num_waiting_reqs"] == load["num_total_reqs"] - 1 < REQUESTS
    assert 0 <= load["num_used_tokens"] <= load["max_total_num_tokens"] == 512
    assert 0 < older["num_waiting_reqs"] == older["num_reqs"] - 1 < REQUESTS
    assert slot["is_processing"]
    assert slot["n_prompt_tokens"] == 1


def test_which_model_it_has(server: Server) -> None:
    told = server.get("/get_model_info").json()
    (model,) = server.get("/v1/models").json()["data"]
    assert (told["model_path"], told["is_generation"]) == (model["id"], True)
    assert told["max_model_len"] == model["max_model_len"] == 512
    assert server.get("/health_generate").json() == {"status": "ok"}


def test_vllms_names_in_metrics(serve: Serve) -> None:
    server = serve("--metrics-names", "vllm", "--ctx-size", 512, "--alias", "m")

    def told(name: str) -> float:
        return server.metric(f"vllm:{name}", model_name="m")

    for _ in range(2):
        assert server.chat(prefill={"policy": "full"}).status_code == 200
    prompt = server.metric("h2o_prompt_tokens_total") + server.metric("h2o_prompt_cached_tokens_total")
    assert told("prefix_cache_queries_total") == told("prompt_tokens_total") == prompt
    assert told("prefix_cache_hits_total") == server.metric("h2o_prompt_cached_tokens_total") > 0
    assert told("generation_tokens_total") == server.metric("h2o_predicted_tokens_total") == 8
    assert (told("num_requests_running"), told("num_requests_waiting"), told("kv_cache_usage_perc")) == (
        0,
        0,
        0,
    )
    with busy(server):
        assert told("num_requests_running") == 1
        assert 0 < told("num_requests_waiting") < REQUESTS
        assert 0 <= told("kv_cache_usage_perc") <= 1


def test_plain_metrics_have_none_of_them(server: Server) -> None:
    assert "vllm:" not in server.get("/metrics").text
