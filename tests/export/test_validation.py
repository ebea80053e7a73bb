"""What a validation measures, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from h2o_export.validation.divergence import mean_divergence


@pytest.mark.parametrize("size", [0.1, 30.0, 3e4])
def test_the_divergence_is_torchs(size: float) -> None:
    draw = np.random.default_rng(0)
    truth = (size * draw.normal(size=(5, 300))).astype(np.float32)
    found = truth + 0.1 * size * draw.normal(size=truth.shape).astype(np.float32)
    p, q = (torch.from_numpy(one).double().log_softmax(dim=1) for one in (truth, found))
    expected = functional.kl_div(q, p, reduction="batchmean", log_target=True)
    assert mean_divergence(truth, found) == pytest.approx(float(expected), rel=1e-9)
    assert mean_divergence(truth, truth + 5) == pytest.approx(0, abs=1e-6)


def test_the_divergence_of_no_numbers_is_none() -> None:
    truth = np.zeros((2, 4), np.float32)
    for wrong in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(mean_divergence(truth, np.full_like(truth, wrong)))
