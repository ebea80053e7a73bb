"""The whole bundle against the checkpoint: logits under both policies, and of two providers against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from h2o_export.checkpoint import Checkpoint
from h2o_export.comparison.report import Row, compare_arrays
from h2o_export.comparison.single_pass import SinglePass
from h2o_export.comparison.subject import Subject
from h2o_export.reference import Attention, StreamedModel
from h2o_runtime.config import PrefillConfig
from h2o_runtime.generator import Generator
from h2o_runtime.names import ProviderChoice

TOLERANCE = 1e-4  # of the largest value, float32
HALF_FLOOR = 1e-3
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PipelineComparison:
    """Log-probabilities of every token of one prompt, [N - 1]."""

    subject: Subject
    ids: Sequence[int]

    def against_checkpoint(
        self, checkpoint: Checkpoint, configs: Sequence[PrefillConfig], progress: Progress
    ) -> Iterator[Row]:
        """The bundle under each configuration against transformers, full or with the single-pass policy."""
        with self.subject.load(len(self.ids)) as generator:
            for config in configs:
                name = describe(config)
                progress(f"pipeline, {name}")
                actual = generator.logprobs(self.ids, config)
                sets = generator.boundary_memory()
                yield self._row(checkpoint, config, generator, actual, sets)

    def between(
        self, configs: Sequence[PrefillConfig], other: ProviderChoice, progress: Progress
    ) -> Iterator[Row]:
        """The subject against itself with another attention provider."""
        for config in configs:
            results = []
            for attention in (self.subject.attention, other):
                progress(f"pipeline, {describe(config)}, {attention}")
                with self.subject.load(len(self.ids), attention) as generator:
                    name = f"{generator.backend.name}+{generator.provider.name}"
                    results.append((name, generator.logprobs(self.ids, config)))
            tolerance = TOLERANCE if self._dtype == "float32" else 20 * HALF_FLOOR
            yield compare_arrays("pipeline", describe(config), "logprobs", results[0], results[1], tolerance)

    def _row(
        self,
        checkpoint: Checkpoint,
        config: PrefillConfig,
        generator: Generator,
        actual: NDArray[np.float32],
        sets: NDArray[np.int32],
    ) -> Row:
        truth, rule = self._reference(checkpoint, config, sets, torch.float32)
        tolerance, note = TOLERANCE, ""
        if self._dtype == "float16":
            own, _ = self._reference(checkpoint, config, sets, torch.float16)
            tolerance = 2 * float(np.abs(own - truth).max() / np.abs(truth).max()) + HALF_FLOOR
        subject = f"{generator.backend.name}+{generator.provider.name}"
        reference = "transformers" if config.policy == "full" else "single pass"
        row = compare_arrays(
            "pipeline", describe(config), "logprobs", (subject, actual), (reference, truth), tolerance
        )
        if rule is not None and config.policy == "h2o":
            note = f"memory sets: {rule.swapped} near ties went the other way, {rule.wrong} entries wrong"
            good = rule.wrong == 0 or self._dtype == "float16"  # float16 moves scores by more than a near tie
            row = replace(row, note=note, passed=row.passed and good)
        return row

    def _reference(
        self, checkpoint: Checkpoint, config: PrefillConfig, sets: NDArray[np.int32], dtype: torch.dtype
    ) -> tuple[NDArray[np.float64], SinglePass | None]:
        rule = None
        attention: Attention | None = None
        if config.policy == "h2o":
            rule = SinglePass(config, checkpoint.config.kv_heads, sets)
            attention = rule
        model = StreamedModel(checkpoint, dtype, attention)
        *_, hidden = model.hidden_states(list(self.ids))
        rows = [self._logprobs(model, hidden, start) for start in range(0, len(self.ids) - 1, 256)]
        return np.concatenate(rows), rule

    def _logprobs(self, model: StreamedModel, hidden: torch.Tensor, start: int) -> NDArray[np.float64]:
        stop = min(start + 256, len(self.ids) - 1)
        logits = model.logits(hidden[start:stop]).double().log_softmax(-1)  # [rows, V]
        chosen = torch.tensor(self.ids[start + 1 : stop + 1])[:, None]
        values: NDArray[np.float64] = logits.gather(1, chosen)[:, 0].numpy()
        return values

    @property
    def _dtype(self) -> str:
        return self.subject.bundle.manifest.model.dtype


def describe(config: PrefillConfig) -> str:
    """A short name of a configuration for tables."""
    if config.policy == "full":
        return "full"
    heads = "" if config.score_heads == "kv" else ", query heads"
    return f"h2o S={config.chunk_size} L={config.local} H={config.heavy} {config.score}{heads}"
