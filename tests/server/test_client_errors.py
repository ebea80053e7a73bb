"""Errors, as the official client raises them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.conftest import Serve

openai = pytest.importorskip("openai")
ASK = [{"role": "user", "content": "Hello."}]


def client(url: str, **options: Any) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", **({"api_key": "none", "max_retries": 0} | options))


def test_what_is_unknown_is_not_found(server: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client(server.url).models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client(server.url).moderations.create(model="m", input="x")


def test_a_full_queue_is_worth_another_try(serve: Serve) -> None:
    """The client sees a 503, waits for as long as Retry-After says, and gets its answer."""
    server = serve("--limits", "queue=0", "--ctx-size", 2048)
    stream = client(server.url).completions.create(
        model="m", prompt="x", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    with pytest.raises(openai.InternalServerError) as caught:
        client(server.url).completions.create(model="m", prompt="x", max_tokens=1)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    stream.close()
    patient = client(server.url, max_retries=5)
    assert patient.completions.create(model="m", prompt="x", max_tokens=1).choices
