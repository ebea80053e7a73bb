"""What ONNX Runtime is told of a GPU, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from h2o_runtime.ort.cuda import CUDA_PROVIDER, cuda_providers


def test_weights_take_no_more_than_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Initializers go through an arena of the session, which would double with every extension."""
    monkeypatch.setattr("h2o_runtime.ort.cuda.share_arena", lambda ort: None)
    ort: Any = SimpleNamespace(get_available_providers=lambda: [CUDA_PROVIDER])
    (name, options), fallback = cuda_providers(ort, 1234)
    assert name == CUDA_PROVIDER
    assert options == {
        "user_compute_stream": "1234",
        "use_tf32": "0",
        "arena_extend_strategy": "kSameAsRequested",
    }
    assert fallback == "CPUExecutionProvider"
