"""After an export: does the bundle compute what the checkpoint computes?

Bundle and transformers run side by side on a real text, with one layer of each in memory at a time. Each
continues with its own hidden states. So errors accumulate from layer to layer, as users would see them.

Two questions, two numbers. The relative error is that of the bundle's arithmetic: its reference has the bundle's
rounded weights. The divergence is from the checkpoint's own weights: it says whether the bundle still predicts what
the checkpoint does. What rounding costs in perplexity is told beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from h2o_export.calibration import as_stored
from h2o_export.checkpoints import Checkpoint
from h2o_export.formats import formats_of
from h2o_export.reference.rounded import RoundedCheckpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_export.validation.divergence import LIMIT, mean_divergence
from h2o_export.validation.perplexity import loss_of_perplexity, mean_loss
from h2o_export.validation.tokens import PROMPT, check_tokens
from h2o_runtime.backends.onnxruntime import OnnxRuntimeBackend
from h2o_runtime.bundles.bundle import Bundle
from h2o_runtime.bundles.manifest import Validation
from h2o_runtime.caches.reuse import Prefix
from h2o_runtime.devices import HostDevice
from h2o_runtime.execution.forward import Forward, PromptRun
from h2o_runtime.layers.activations import Activations
from h2o_runtime.layers.live import Layers, equivalent_settings
from h2o_runtime.policies.prefill.full import Full
from h2o_runtime.providers.select import provider_factory
from h2o_runtime.schedule import Span, spans
from h2o_runtime.sessions.session import Session
from h2o_runtime.sessions.spec import SessionSpec
from h2o_runtime.text import Tokenizer

FLOAT32_TOLERANCE = 1e-4  # relative, of the logits
FLOAT16_FLOOR = 1e-3
# Of the text; the logits of the last rows of each are compared: a row is as wide as the vocabulary.
SECTIONS, SECTION_ROWS = 4, 8

# Replaces an infinite or undefined error: the manifest is JSON, which has neither.
HUGE = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Errors:
    """Difference of one output from the reference's."""

    max_abs: float
    max_value: float
    relative: float  # Frobenius norm of the error divided by that of the reference

    @classmethod
    def between(cls, actual: NDArray[np.floating], expected: Tensor) -> Errors:
        truth = expected.double().numpy()
        error = actual.astype(np.float64) - truth
        scale = max(float(np.linalg.norm(truth)), np.finfo(np.float64).tiny)
        values = np.abs(error).max(), np.abs(truth).max(), np.linalg.norm(error) / scale
        return cls(*(_number(float(value)) for value in values))


def validate(folder: Path, checkpoint: Checkpoint, progress: Callable[[str], None]) -> Validation:
    """Compare the bundle in `folder` with `checkpoint`. float32 must be within 1e-4; float16 within twice
    transformers' own float16 error, plus 1e-3. Integer weights are reported separately: see `Validation`.
    """
    bundle = Bundle.open(folder)
    tokens = check_tokens(Tokenizer.load(folder), checkpoint)
    ids = _prompt_ids(bundle, folder)
    rows = tuple(_compared_rows(len(ids)))
    formats = formats_of(bundle.manifest.model)
    original = checkpoint
    if formats is not None:
        checkpoint = RoundedCheckpoint.of(as_stored(original, bundle), formats)
    reference = StreamedModel(checkpoint, torch.float32)
    half = bundle.manifest.model.dtype == "float16"
    twin = StreamedModel(checkpoint, torch.float16) if half else None
    run = _LayerwiseRun(bundle, ids)
    layers: list[float] = []
    twin_states = twin.hidden_states(ids) if twin else None
    hidden = twin_hidden = torch.empty(0)
    for index, hidden in enumerate(reference.hidden_states(ids)):
        progress(f"validate layer {index} of {bundle.manifest.model.layers}")
        if index < bundle.manifest.model.layers:
            layers.append(Errors.between(run.layer(index), hidden).relative)
        if twin_states is not None:
            twin_hidden = next(twin_states)
    progress("validate logits")
    found, expected = run.logits(rows), reference.logits(_picked(hidden, rows))
    errors = Errors.between(found, expected)
    tolerance = FLOAT32_TOLERANCE
    if twin is not None:
        twin_errors = Errors.between(twin.logits(_picked(twin_hidden, rows)).float().numpy(), expected)
        tolerance = (
            2 * min(twin_errors.relative, 1.0) + FLOAT16_FLOOR
        )  # float16 may overflow in transformers too
    truth, lost, worse = expected, None, None
    if formats is not None:
        progress("validate quantization")
        unrounded = StreamedModel(original, torch.float32)
        *_, hidden = unrounded.hidden_states(ids)
        truth = unrounded.logits(_picked(hidden, rows))
        lost = Errors.between(expected.numpy(), truth).relative
        worse = _perplexity_loss(ids, run, unrounded, hidden)
    divergence = _number(mean_divergence(truth.numpy(), found))
    weights = ", weights rounded" if formats is not None else ""
    return Validation(
        tokens=len(ids),
        reference=f"transformers, float32, full attention{weights}",
        max_abs_error=errors.max_abs,
        max_abs_value=errors.max_value,
        relative_error=errors.relative,
        tolerance=tolerance,
        layers=tuple(layers),
        passed=errors.relative <= tolerance and divergence <= LIMIT and not tokens.wrong,
        quantization_error=lost,
        divergence=divergence,
        divergence_limit=LIMIT,
        perplexity_loss=worse,
        token_ids=tokens,
    )


def _number(value: float) -> float:
    return value if np.isfinite(value) else HUGE


def _compared_rows(n: int) -> Iterator[Span]:
    """Of a text of n tokens; all rows of a short one."""
    for start, stop in itertools.pairwise(n * index // SECTIONS for index in range(SECTIONS + 1)):
        if start < stop:
            yield Span(max(start, stop - SECTION_ROWS), stop)


def _picked(hidden: Tensor, rows: Sequence[Span]) -> Tensor:
    return torch.cat([hidden[span.start : span.stop] for span in rows])


def _perplexity_loss(
    ids: list[int], run: _LayerwiseRun, truth: StreamedModel, hidden: Tensor
) -> float | None:
    """Of the bundle, against `truth`, whose last hidden states [n, D] are known. A single token has none."""
    if len(ids) < 2:
        return None
    expected = mean_loss(lambda span: truth.logits(hidden[span.start : span.stop]), ids)
    found = mean_loss(lambda span: torch.from_numpy(run.logits((span,))), ids)
    return _number(loss_of_perplexity(found, expected))


def _prompt_ids(bundle: Bundle, folder: Path) -> list[int]:
    """The prompt in this model's tokens; ids beyond a (test) vocabulary wrap around."""
    ids = Tokenizer.load(folder).encode(PROMPT)
    vocabulary, longest = bundle.manifest.model.vocab_size, bundle.manifest.model.max_position_embeddings
    return [token % vocabulary for token in ids][:longest]


class _LayerwiseRun:
    """The bundle under full attention with one dense graph loaded at a time."""

    def __init__(self, bundle: Bundle, ids: list[int]) -> None:
        model = bundle.manifest.model
        self._n, device = len(ids), HostDevice()
        self._backend = OnnxRuntimeBackend(bundle, dense_form="exact")
        self._bundle = bundle
        self._buffers = Activations(model, self._n, device)
        make = provider_factory("auto", bundle, device, None)
        layers = Layers(model, make, equivalent_settings(model)[0])
        session = Session(SessionSpec(bundle, self._n, device, layers))
        live = layers.load(self._backend, self._buffers, self._n, device, session.spec.cache)
        self._forward = Forward(
            bundle.manifest, self._backend, live, session.spec.decoding, self._buffers, device
        )
        policy = Full(batch_size=self._n)
        self._prompt = PromptRun(np.array(ids, np.int64), Prefix.NONE, policy, session)
        self._forward.begin(self._prompt)

    def layer(self, index: int) -> NDArray[np.floating]:
        """Run dense graph `index` and its attention; returns the residual stream before the layer, [n, D]."""
        self._load(index)
        self._forward.layer(index, self._prompt)
        residual: NDArray[np.floating] = self._buffers.residual(index)[: self._n]
        return residual

    def logits(self, rows: Sequence[Span]) -> NDArray[np.floating]:
        self._load(len(self._forward.dense_graphs) - 1)
        tiles = (
            Span(span.start + tile.start, span.start + tile.stop)
            for span in rows
            for tile in spans(len(span), self._forward.head_rows)
        )
        return np.concatenate([self._forward.logits(tile).copy() for tile in tiles])

    def _load(self, index: int) -> None:
        """Dense graph `index`, and the small graphs of the layers before and after it."""
        small = [graph.name for layer in (index - 1, index) for graph in self._bundle.small_graphs(layer)]
        self._backend.deactivate()
        self._backend.activate(only=[self._forward.dense_graphs[index], *small])
