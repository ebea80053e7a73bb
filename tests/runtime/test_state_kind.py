"""A layer kind of another package, whose state is its own: sessions, pieces and saved caches carry it unasked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests import bundles
from tests.reference import checkpoints

from h2o_export.architecture.families import FAMILIES
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.caches import Cache, Contiguous, Paged
from h2o_runtime.errors import BundleError
from h2o_runtime.layers import LAYERS, state_layout
from h2o_runtime.policies.prefill import Full
from h2o_runtime.sessions.layer_states import session_bytes
from h2o_runtime.sessions.saved import SavedSession, save_session

TOYS = Path(__file__).parents[1] / "toys"
FULL = Full(batch_size=32)
CONTEXT = 256


@pytest.fixture(autouse=True, scope="module")
def toys() -> Iterator[None]:
    """Installed for these tests: a registry looks for entry points once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOYS))
        LAYERS.__dict__.pop("_entries", None)
        yield
    LAYERS.__dict__.pop("_entries", None)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped queries and short convolutions in turn."""
    root = tmp_path_factory.mktemp("convolutions")
    (root / "checkpoint").mkdir()
    checkpoints.make_checkpoint(root / "checkpoint", layers=4, kv_heads=2, head_dim=32)
    file = root / "checkpoint" / "model.safetensors"
    unread = {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in (1, 3) for name in "kv"}
    tensors = load_file(file)
    save_file({name: tensors[name] for name in tensors.keys() - unread}, file, {"format": "pt"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], layers=("grouped-query", "convolution")))
        return bundles.export(root / "checkpoint", root / "bundle")


def load(bundle: Path, cache: Cache | None = None) -> Generator:
    return Generator.load(bundle, context=CONTEXT, threads=1, cache=cache or Contiguous())


def close(ours: NDArray[Any], theirs: NDArray[Any]) -> None:
    assert np.abs(ours - theirs).max() <= 5e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("cache", [Contiguous(), Paged()], ids=["contiguous", "paged"])
def test_it_goes_on_behind_prompts_turns_and_tokens(bundle: Path, cache: Cache) -> None:
    """In several tiles, token by token, and behind its last prompt: as in one pass from the start."""
    ids = bundles.random_ids(100)
    with load(bundle, cache) as generator, load(bundle) as fresh:
        generator.prefill(ids[:70], FULL)
        close(generator.prefill(ids[:90], FULL), fresh.prefill(ids[:90], FULL, reuse=False))
        assert generator.reused == 70
        for at in range(90, 100):
            close(generator.decode(int(ids[at])), fresh.prefill(ids[: at + 1], FULL, reuse=False))
        close(generator.prefill(ids[:90], FULL), fresh.prefill(ids[:90], FULL, reuse=False))
        assert generator.reused == 89


def test_its_state_is_what_it_declares(bundle: Path) -> None:
    """Two tokens' rows of four heads in float32, and no array that an operator would update."""
    model = Manifest.read(bundle).model
    layouts = [state_layout(spec, model.dtype) for spec in model.each_layer]
    assert [layout is None for layout in layouts] == [True, False, True, False]
    assert layouts[1] is not None
    assert not layouts[1].arrays
    assert {name: array.nbytes for name, array in layouts[1].state.items()} == {"earlier": 2 * 4 * 32 * 4}


def test_a_saved_session_holds_it(bundle: Path, tmp_path: Path) -> None:
    ids = bundles.random_ids(80)
    with load(bundle) as generator, load(bundle) as other:
        generator.prefill(ids[:60], FULL)
        save_session(generator.session, tmp_path / "session")
        expected = generator.prefill(ids, FULL)
        SavedSession.open(tmp_path / "session").load_into(other.session, FULL)
        np.testing.assert_array_equal(other.prefill(ids, FULL), expected)
        assert other.reused == 60


def test_its_memory_is_counted(bundle: Path) -> None:
    with load(bundle) as generator:
        spec = generator.loaded.spec
        expected = session_bytes(Contiguous(), spec.model, CONTEXT, spec.rows_ahead)
        assert generator.session.store.nbytes == expected


def test_sizes_of_another_kinds_state_are_refused(bundle: Path, tmp_path: Path) -> None:
    spec = Manifest.read(bundle).model.layer(1)
    with pytest.raises(
        BundleError, match=r"of the kind gated-delta has the sizes channels, tail, .* gives before"
    ):
        state_layout(spec.model_copy(update={"kind": "gated-delta"}), "float32")
    with pytest.raises(BundleError, match="layers of the kind window have rows"):
        state_layout(spec.model_copy(update={"kind": "window"}), "float32")
