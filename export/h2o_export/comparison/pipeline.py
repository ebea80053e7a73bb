"""The whole bundle against the checkpoint, and attention providers against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h2o_export.calibration import as_stored
from h2o_export.checkpoints import Checkpoint
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.report import BFLOAT16_TOLERANCE, Row, compare_arrays
from h2o_export.formats import formats_of
from h2o_export.reference.rounded import RoundedCheckpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_runtime.generator import Generator
from h2o_runtime.names import ProviderChoice
from h2o_runtime.policies.prefill import Full, PrefillPolicy

TOLERANCE = 1e-4  # of the largest value, float32
HALF_FLOOR = 1e-3
QUANTIZATION_TOLERANCE = {
    "int8": 0.15,
    "int4": 0.6,
    "int4+offset": 0.6,
}  # the same; the largest measured are in docs/weights.md
FULL = Full()
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PipelineComparison:
    """Log-probabilities of every token of one prompt, [N - 1]."""

    compared: ComparedBundle
    ids: Sequence[int]

    def against_checkpoint(self, checkpoint: Checkpoint, progress: Progress) -> Iterator[Row]:
        """The bundle under full attention against transformers.

        With integer weights there are two comparisons. The bundle without further rounding against the
        checkpoint with equally rounded weights finds errors. The bundle as it runs here against the unrounded
        checkpoint shows the total rounding error.
        """
        formats = formats_of(self.compared.bundle.manifest.model)
        if formats is None:
            yield from self._against("pipeline", self.compared.exact, checkpoint, progress)
            if self.compared.attention_precision in ("bfloat16", "int16") or self.compared.rounds_floats:
                yield from self._against("rounding", self.compared, checkpoint, progress)
            return
        rounded = RoundedCheckpoint.of(as_stored(checkpoint, self.compared.bundle), formats)
        yield from self._against("pipeline", self.compared.exact, rounded, progress)
        yield from self._against("quantization", self.compared, checkpoint, progress)

    def _against(
        self, stage: str, compared: ComparedBundle, checkpoint: Checkpoint, progress: Progress
    ) -> Iterator[Row]:
        for settings in compared.layer_settings:
            with compared.load(len(self.ids), layers=settings) as generator:
                progress(f"{stage}, {FULL}")
                yield self._row(stage, checkpoint, generator, generator.logprobs(self.ids, FULL))

    def between(
        self, policy: PrefillPolicy[Any], provider: ProviderChoice, progress: Progress
    ) -> Iterator[Row]:
        """The bundle under full attention and under `policy` against itself with another attention provider."""
        for one in dict.fromkeys((FULL, policy)):
            results = []
            for attention in (self.compared.attention, provider):
                progress(f"pipeline, {one}, {attention}")
                settings = self.compared.layer_settings[0]
                with self.compared.load(len(self.ids), attention, settings) as generator:
                    name = f"{generator.loaded.backend.name}+{generator.spec.provider.name}"
                    results.append((name, generator.logprobs(self.ids, one)))
            tolerance = TOLERANCE if self._dtype == "float32" else 20 * HALF_FLOOR
            yield compare_arrays("pipeline", str(one), "logprobs", results[0], results[1], tolerance)

    def _row(
        self, stage: str, checkpoint: Checkpoint, generator: Generator, actual: NDArray[np.float32]
    ) -> Row:
        expected = self._expected(checkpoint, torch.float32)
        tolerance = TOLERANCE
        if self._dtype == "float16":
            halved = self._expected(checkpoint, torch.float16)
            tolerance = 2 * float(np.abs(halved - expected).max() / np.abs(expected).max()) + HALF_FLOOR
        if stage == "quantization":
            tolerance = max(QUANTIZATION_TOLERANCE.get(name, 0.0) for name in self._weights)
        if stage == "rounding":
            tolerance = BFLOAT16_TOLERANCE
        modes = "".join(f", {how}" for how in generator.loaded.forward.layers.report().values() if how)
        return compare_arrays(
            stage,
            str(FULL) + modes,
            "logprobs",
            (f"{generator.loaded.backend.name}+{generator.spec.provider.name}", actual),
            ("transformers", expected),
            tolerance,
        )

    def _expected(self, checkpoint: Checkpoint, dtype: torch.dtype) -> NDArray[np.float64]:
        model = StreamedModel(checkpoint, dtype)
        *_, hidden = model.hidden_states(list(self.ids))
        rows = [self._logprobs(model, hidden, start) for start in range(0, len(self.ids) - 1, 256)]
        return np.concatenate(rows)

    def _logprobs(self, model: StreamedModel, hidden: torch.Tensor, start: int) -> NDArray[np.float64]:
        stop = min(start + 256, len(self.ids) - 1)
        logits = model.logits(hidden[start:stop]).double().log_softmax(-1)  # [rows, V]
        chosen = torch.tensor(self.ids[start + 1 : stop + 1])[:, None]
        values: NDArray[np.float64] = logits.gather(1, chosen)[:, 0].numpy()
        return values

    @property
    def _weights(self) -> set[str]:
        """Formats of layers' matrices."""
        weights = self.compared.bundle.manifest.model.weights
        return {weights.projections, *weights.named.values()} if weights else set()

    @property
    def _dtype(self) -> str:
        return self.compared.bundle.manifest.model.dtype
