"""Layers without keys of their own at run time: caches, policies and sessions.

Layer 4 reads layer 1, both with a window, and layer 5 reads layer 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from tests.bundles import export, random_ids, relative_error
from tests.family_models import VOCAB, WINDOWS, save
from tests.runtime import layer_cases
from tests.runtime.layer_cases import EACH_POLICY, FULL, H2O, NEXT, POLICIES, PROMPT

from h2o_runtime import Generator
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.caches import Contiguous, Evicting, Offload, Paged
from h2o_runtime.errors import ConfigError
from h2o_runtime.execution.footprint import cache_bytes
from h2o_runtime.layers.activations import activation_bytes
from h2o_runtime.policies.decode.quest import Quest
from h2o_runtime.policies.prefill import PrefillPolicy
from h2o_runtime.providers.select import provider_factory
from h2o_runtime.sessions.saved import SavedSession, save_session

pytestmark = pytest.mark.usefixtures("models_stay_loaded")

CONTEXT = 400
load = partial(layer_cases.load, context=CONTEXT)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lent")
    return export(save(folder / "checkpoint", "gemma4", WINDOWS), folder / "bundle")


def conversation(generator: Generator, policy: PrefillPolicy[Any]) -> Iterator[NDArray[np.float32]]:
    """Logits of a prompt, an answer, a next turn, and of a prompt that goes on from an earlier place."""
    yield generator.prefill(PROMPT, policy)
    for token in NEXT[:20]:
        yield generator.decode(token)
    yield generator.prefill([*PROMPT, *NEXT], policy)
    if policy.exact:
        yield generator.prefill([*PROMPT, *NEXT[:30], 7, 8, 9], policy)


agree = partial(layer_cases.agree, conversation)


@pytest.mark.parametrize("name", EACH_POLICY)
def test_caches_agree_under_every_policy(bundle: Path, name: str) -> None:
    with load(bundle) as contiguous, load(bundle, Paged()) as paged:
        agree(contiguous, paged, POLICIES[name], 1e-5)


def test_rows_that_are_rounded_are_lent_as_they_were_computed(bundle: Path) -> None:
    for dtype in ("float16", "int8"):
        caches = Contiguous(rows=dtype), Paged(rows=dtype)  # type: ignore[arg-type]
        with load(bundle, caches[0]) as contiguous, load(bundle, caches[1]) as paged, load(bundle) as exact:
            agree(contiguous, paged, H2O, 1e-2)
            assert relative_error(contiguous.prefill(PROMPT, H2O), exact.prefill(PROMPT, H2O)) < 5e-2


def test_a_step_of_selected_pages_reads_lent_rows(bundle: Path) -> None:
    quest = Quest(budget=64, page=8)
    with load(bundle, decoding=quest) as contiguous, load(bundle, Paged(), decoding=quest) as paged:
        agree(contiguous, paged, FULL, 1e-5)


@pytest.mark.parametrize("attention", ["native", "functions"])
def test_providers_agree(bundle: Path, attention: Any) -> None:
    with load(bundle, attention=attention) as generator, load(bundle, Paged()) as other:
        agree(generator, other, H2O, 1e-4)


def test_saved_and_waiting_sessions_hold_each_row_once(bundle: Path, tmp_path: Path) -> None:
    path, ids, other = tmp_path / "session.npz", [*PROMPT, 7, *NEXT], random_ids(200, 5, VOCAB).tolist()
    with load(bundle) as before, load(bundle, Paged(), pool_bytes=1 << 26) as after:
        before.prefill(PROMPT, FULL)
        before.decode(7)
        save_session(before.session, path)
        SavedSession.open(path).load_into(after.session, FULL)
        expected = before.prefill(ids, FULL).copy()
        assert relative_error(after.prefill(ids, FULL), expected) < 1e-5
        assert after.reused == len(PROMPT) + 1
        after.prefill(other, FULL)
        assert relative_error(after.prefill([*ids, 5], FULL), before.prefill([*ids, 5], FULL)) < 1e-5
        assert after.reused == len(ids)
    with np.load(path) as file:
        assert {"k000", "k001", "k002", "k003"} <= {*file}
        assert not {"k004", "k005"} & {*file}


def test_memory_is_counted_once(bundle: Path) -> None:
    for cache in (Contiguous(), Contiguous(rows="int8"), Paged()):
        with load(bundle, cache) as generator:
            model, item = generator.model, 4
            assert generator.session.store.nbytes == cache.store_bytes(model, CONTEXT)
            assert generator.loaded.forward.buffers.nbytes == activation_bytes(model, CONTEXT)
    rows = 2 * 2 * (2 * 32 + 2 * 64) * item  # keys and values, two heads each, of layers 0 … 3
    assert (model.token_bytes, model.read_bytes) == (rows, rows * 3 // 2)
    assert not {name for name in cache_bytes(model, CONTEXT) if not name.startswith(("contiguous", "paged"))}


def test_what_cannot_serve_them_is_refused_in_one_sentence(bundle: Path) -> None:
    for cache in (Offload(), Evicting(tokens=128)):
        with pytest.raises(ConfigError, match="cache"):
            load(bundle, cache)
    cuda: Any = SimpleNamespace(name="cuda", memory="cuda")
    with pytest.raises(ConfigError, match="do not run on a GPU yet: use `device=cpu`"):
        provider_factory("auto", Bundle.open(bundle), cuda, None)
    with load(bundle) as generator:
        assert generator.loaded.forward.one_row_because(generator.session)
        model = generator.model
    for layer, wrong in ((4, {"source": 2}), (4, {"source": 5}), (1, {"lends": False}), (4, {"kv_heads": 1})):
        specs = [spec.model_dump() for spec in model.each_layer]
        specs[layer] |= wrong
        with pytest.raises(ValidationError, match="cannot read the rows of layer"):
            type(model).model_validate(model.model_dump() | {"layer_specs": specs})
