"""What --device auto and a missing --prefill become."""

from __future__ import annotations

from typing import Any

import pytest
from tests.model_specs import grouped

from h2o_cli.model_options import on_device
from h2o_cli.policy_options import chosen_prefill, prefill_policy
from h2o_runtime.backends import select_device
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.policies.prefill import Full, PrefillPolicy, Query

NONE = {
    "prefill": None,
    "short_batch_size": None,
    "short_chunk_size": None,
    "short_local": None,
    "short_heavy": None,
}
GUARDED = Query(missed=0.0025)


def test_only_flags_choose_a_policy() -> None:
    default = Query(heavy=192)
    assert chosen_prefill(default, dict(NONE)) is None
    assert prefill_policy(default, dict(NONE)) == default
    assert chosen_prefill(default, NONE | {"prefill": "full"}) == Full()
    assert chosen_prefill(default, NONE | {"prefill": "h2o"}) == Query()
    assert chosen_prefill(default, NONE | {"short_local": 32}) == Query(heavy=192, local=32)


@pytest.mark.parametrize(
    ("bundles", "named", "device"),
    [(Query(), None, "cuda"), (Query(), GUARDED, "cpu"), (GUARDED, None, "cpu"), (GUARDED, Full(), "cuda")],
)
def test_auto_is_a_device_for_the_policy(
    bundles: PrefillPolicy[Any],
    named: PrefillPolicy[Any] | None,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(select_device, "_gpu_is_usable", lambda: True)
    manifest = Manifest.model_construct(model=grouped(8, 2), prefill=bundles)
    arguments = {"device": "auto", "backend": "onnxruntime", "threads": 2}
    assert on_device(arguments, manifest, named) == arguments | {"device": device}
