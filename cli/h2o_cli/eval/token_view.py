"""Results for each token of the first text, under every contestant."""

from __future__ import annotations

from typing import Any

import numpy as np

from h2o_cli.eval.readings import IntArray, Reading
from h2o_runtime import Generator
from h2o_runtime.policies.prefill import PrefillReport
from h2o_runtime.text import TextStream, Tokenizer


def token_texts(tokenizer: Tokenizer, ids: IntArray) -> list[str]:
    """The text that each token adds."""
    stream = TextStream(tokenizer)
    texts = []
    for token in ids.tolist():
        special = token in tokenizer.special_ids
        texts.append(tokenizer.decode([token], skip_special_tokens=False) if special else stream.push(token))
    texts[-1] += stream.finish()
    return texts


def seen_by(reading: Reading, generator: Generator) -> dict[str, Any]:
    """For one contestant, right after its reading: losses of tokens 1 … N - 1, and how often each was
    selected.
    """
    return {
        "nll": [round(float(loss), 3) for loss in reading.nll],
        "kept": selected_share(generator.report(), len(reading.nll) + 1),
    }


def selected_share(report: PrefillReport, n: int) -> list[float] | None:
    """For each of n tokens, the share of the possible lists that contain it; None if a policy reports no
    lists.

    A list at a boundary can contain earlier tokens, and always contains the last of them.
    """
    sets = report.boundaries
    if not sets.size:
        return None
    selected, possible = np.zeros(n), np.zeros(n)
    for boundary in sets:  # [layers, Hs, M]
        possible[: int(boundary.max()) + 1] += boundary.shape[0] * boundary.shape[1]
        selected += np.bincount(boundary[boundary >= 0], minlength=n)[:n]
    return [round(float(share), 3) for share in selected / np.maximum(possible, 1)]
