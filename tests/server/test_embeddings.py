"""/v1/embeddings with OpenAI's own client, and the mistakes that people make."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.server.conftest import Serve
from tests.server.running import PATIENCE, Server, error_of, wait_for

from h2o_runtime import Generator
from h2o_runtime.answers.events import read_at_once
from h2o_runtime.bundles.manifest import EmbeddingSpec, Manifest
from h2o_runtime.names import Pooling
from h2o_runtime.text import Tokenizer


def vectors(answer: Any) -> NDArray[np.float32]:
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data], np.float32)


def embed(server: Server, given: Any, **more: Any) -> Any:
    return server.post("/v1/embeddings", {"input": given, "model": "m", **more})


def test_every_form_of_input_and_answer(openai: Any, tiny_bundle: Path, tiny_generator: Generator) -> None:
    texts = ["Once upon a time", "The river", "The river"]
    tokenizer = Tokenizer.load(tiny_bundle)
    ids = [tokenizer.encode(text) for text in texts]
    create = openai.embeddings.create
    answer = create(model="m", input=texts)  # the client asks for base64 and decodes it
    found = vectors(answer)
    wanted = read_at_once(tiny_generator.embed(np.array(ids[0]), Pooling.MEAN))
    np.testing.assert_allclose(found[0], wanted, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(found[1], found[2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    size = tiny_generator.model.hidden_size
    for given in (texts, ids):
        floats = create(model="m", input=given, encoding_format="float", dimensions=size)
        np.testing.assert_array_equal(vectors(floats), found)
    for single in (texts[0], ids[0]):
        np.testing.assert_array_equal(vectors(create(model="m", input=single)), found[:1])


def test_the_pooling_is_the_bundles_own_unless_a_flag_names_another(
    serve: Serve, tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    manifest = Manifest.read(bundle)
    own = EmbeddingSpec(pooling=Pooling.LAST, normalized=False)
    manifest.model_copy(update={"embedding": own}).write(bundle)
    server = serve("--ctx-size", 512, bundle=bundle)
    with Generator.load(bundle, context=512) as generator:
        wanted = read_at_once(generator.embed(np.array([5, 6, 7])))
        mean = read_at_once(generator.embed(np.array([5, 6, 7]), Pooling.MEAN))
    assert abs(np.linalg.norm(wanted) - 1) > 0.1
    other = serve("--ctx-size", 512, "--pooling", "mean", bundle=bundle)
    for one, name, vector in ((server, "last", wanted), (other, "mean", mean)):
        np.testing.assert_allclose(embed(one, [5, 6, 7]).json()["data"][0]["embedding"], vector, rtol=1e-5)
        assert one.get("/props").json()["pooling"] == name


@pytest.mark.parametrize(
    ("given", "says", "param"),
    [
        ("", "at least 1 character", "input"),
        ([], "at least 1 item", "input"),
        (["a", ""], "at least 1 character", "input.1"),
        ([[]], "at least 1 item", "input.0"),
        (7, "valid string", "input"),
        (None, "valid string", "input"),
        ([10_000_000], "token id 10000000: ids run from 0 to", "input"),
        (["a"] * 2049, "at most 2048 inputs", "input"),
    ],
)
def test_inputs_that_are_none(server: Server, given: Any, says: str, param: str) -> None:
    error = error_of(embed(server, given), 400)
    assert says in error["message"]
    assert error["param"] == param


def test_an_input_that_is_too_long(server: Server) -> None:
    error = error_of(embed(server, ["short", "word " * 2000]), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "input.1"


def test_other_mistakes(server: Server) -> None:
    assert "dimensions must be" in error_of(embed(server, "a", dimensions=7), 400)["message"]
    assert error_of(embed(server, "a", encoding_format="int8"), 400)["param"] == "encoding_format"
    assert error_of(server.post("/v1/embeddings", {"model": "m"}), 400)["code"] == "missing_parameter"
    assert error_of(embed(server, "a", prefill={"chunk_size": 0}), 400)["param"] == "prefill.chunk_size"


def test_a_request_is_one_line_of_the_log(server: Server) -> None:
    before = server.log.count("embd-")
    assert embed(server, ["a river", "a hill", "x"]).status_code == 200
    wait_for(lambda: "embedded 3 of 3 inputs" in server.log)
    assert server.log.count("embd-") == before + 1


def test_many_inputs_beside_a_conversation(serve: Serve) -> None:
    """More text than a context holds; the conversation keeps its slot, and its answer comes in between."""
    server = serve("--ctx-size", 512, "--slots", 2)
    server.chat("Hello, my conversation.")
    inputs = [f"Text number {i} " + "of the river and the hill. " * 10 for i in range(90)]
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(embed(server, inputs, encoding_format="base64")))
    with server.client() as other:
        thread.start()
        wait_for(lambda: "h2o_busy 1.0" in other.get("/metrics").text)
        again = {"messages": [{"role": "user", "content": "Hello, my conversation."}], "max_tokens": 4}
        assert other.post("/v1/chat/completions", json=again).status_code == 200
        assert thread.is_alive()
    thread.join()
    assert [slot["n_past"] > 0 for slot in server.get("/slots").json()] == [True, False]
    assert len(answers[0].json()["data"]) == 90
    assert "Traceback" not in server.log


def test_a_client_that_leaves(serve: Serve) -> None:
    server = serve("--ctx-size", 512)
    soon = httpx.Timeout(PATIENCE, read=0.5)
    with server.client() as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post("/v1/embeddings", json={"input": ["word " * 300] * 2000}, timeout=soon)
    server.wait_until_idle()
    assert server.chat().status_code == 200
    assert "Traceback" not in server.log
