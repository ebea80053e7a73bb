"""The whole bundle against the checkpoint, policy by policy, and attention providers against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from h2o_export.calibration import as_stored
from h2o_export.checkpoints import Checkpoint
from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.report import BFLOAT16_TOLERANCE, Row, compare_arrays
from h2o_export.formats import formats_of
from h2o_export.policies import MakeReference, Reference, policy_entry
from h2o_export.reference.rounded import RoundedCheckpoint
from h2o_export.reference.streamed_model import StreamedModel
from h2o_runtime.config.compatibility import check_policy
from h2o_runtime.errors import ConfigError
from h2o_runtime.generator import Generator
from h2o_runtime.names import ProviderChoice
from h2o_runtime.policies.prefill import PrefillPolicy

TOLERANCE = 1e-4  # of the largest value, float32
HALF_FLOOR = 1e-3
QUANTIZATION_TOLERANCE = {
    "int8": 0.15,
    "int4": 0.6,
    "int4+offset": 0.6,
}  # the same; the largest measured are in docs/weights.md
Progress = Callable[[str], None]


@dataclass(frozen=True)
class PipelineComparison:
    """Log-probabilities of every token of one prompt, [N - 1]."""

    compared: ComparedBundle
    ids: Sequence[int]

    def against_checkpoint(
        self, checkpoint: Checkpoint, policies: Sequence[PrefillPolicy[Any]], progress: Progress
    ) -> Iterator[Row]:
        """The bundle under each configuration against the policy's reference, if it has one.

        With integer weights there are two comparisons. The bundle without further rounding against the
        checkpoint with equally rounded weights finds errors. The bundle as it runs here against the unrounded
        checkpoint shows the total rounding error.
        """
        formats = formats_of(self.compared.bundle.manifest.model)
        if formats is None:
            yield from self._against("pipeline", self.compared.exact, checkpoint, policies, progress)
            if self.compared.attention_precision in ("bfloat16", "int16") or self.compared.rounds_floats:
                yield from self._against("rounding", self.compared, checkpoint, policies[:1], progress)
            return
        rounded = RoundedCheckpoint.of(as_stored(checkpoint, self.compared.bundle), formats)
        yield from self._against("pipeline", self.compared.exact, rounded, policies, progress)
        yield from self._against("quantization", self.compared, checkpoint, policies[:1], progress)

    def _against(
        self,
        stage: str,
        compared: ComparedBundle,
        checkpoint: Checkpoint,
        policies: Sequence[PrefillPolicy[Any]],
        progress: Progress,
    ) -> Iterator[Row]:
        for settings in compared.layer_settings:
            with compared.load(len(self.ids), layers=settings) as generator:
                for policy in policies:
                    make = policy_entry(policy).reference(policy)
                    if make is None or not _reads(generator, policy):
                        continue
                    progress(f"{stage}, {policy}")
                    actual = generator.logprobs(self.ids, policy)
                    sets = generator.boundary_memory()
                    yield self._row(stage, checkpoint, policy, make, generator, actual, sets)

    def between(
        self, policies: Sequence[PrefillPolicy[Any]], provider: ProviderChoice, progress: Progress
    ) -> Iterator[Row]:
        """The bundle against itself with another attention provider."""
        for policy in policies:
            results = []
            for attention in (self.compared.attention, provider):
                progress(f"pipeline, {policy}, {attention}")
                settings = self.compared.layer_settings[0]
                with self.compared.load(len(self.ids), attention, settings) as generator:
                    name = f"{generator.loaded.backend.name}+{generator.spec.provider.name}"
                    results.append((name, generator.logprobs(self.ids, policy)))
            tolerance = TOLERANCE if self._dtype == "float32" else 20 * HALF_FLOOR
            yield compare_arrays("pipeline", str(policy), "logprobs", results[0], results[1], tolerance)

    def _row(
        self,
        stage: str,
        checkpoint: Checkpoint,
        policy: PrefillPolicy[Any],
        make: MakeReference,
        generator: Generator,
        actual: NDArray[np.float32],
        sets: NDArray[np.int32],
    ) -> Row:
        half = self._dtype == "float16"
        model = self.compared.bundle.manifest.model.under_policies
        reference = make(model, sets)
        expected = self._expected(checkpoint, reference, torch.float32)
        tolerance = TOLERANCE
        if half:
            halved = self._expected(checkpoint, make(model, sets), torch.float16)
            tolerance = 2 * float(np.abs(halved - expected).max() / np.abs(expected).max()) + HALF_FLOOR
        if stage == "quantization":
            tolerance = QUANTIZATION_TOLERANCE[self._weights]
        if stage == "rounding":
            tolerance = BFLOAT16_TOLERANCE
        modes = "".join(f", {how}" for how in generator.loaded.forward.layers.report().values() if how)
        row = compare_arrays(
            stage,
            str(policy) + modes,
            "logprobs",
            (f"{generator.loaded.backend.name}+{generator.spec.provider.name}", actual),
            (reference.name, expected),
            tolerance,
        )
        verdict = reference.verdict()
        # Rounding of weights moves scores by more than a near tie; so do float16 and bfloat16.
        good = verdict.sound or half or stage in ("quantization", "rounding")
        return replace(row, note=verdict.note, passed=row.passed and good)

    def _expected(
        self, checkpoint: Checkpoint, reference: Reference, dtype: torch.dtype
    ) -> NDArray[np.float64]:
        model = StreamedModel(checkpoint, dtype, reference.attention)
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
    def _weights(self) -> str:
        weights = self.compared.bundle.manifest.model.weights
        return weights.projections if weights else self._dtype

    @property
    def _dtype(self) -> str:
        return self.compared.bundle.manifest.model.dtype


def _reads(generator: Generator, policy: PrefillPolicy[Any]) -> bool:
    """Whether a prompt that fills the context can be read from its first token under a policy."""
    spec = generator.spec
    try:
        check_policy(spec.layers, policy, spec.device)
        generator.loaded.forward.settle(policy, 0, spec.context)
    except ConfigError:
        return False
    return True


def compared_policies(policy: PrefillPolicy[Any]) -> tuple[PrefillPolicy[Any], ...]:
    """The policies to compare for `policy`: full attention first, then variants of the policy."""
    return policy_entry(policy).variants(policy)


def without_reference(policies: Sequence[PrefillPolicy[Any]]) -> list[str]:
    """A sentence for each policy without an independent reference."""
    return [
        f"no comparison of {policy} with the checkpoint: the policy has no independent reference; "
        "`against` compares two attention providers"
        for policy in policies
        if policy_entry(policy).reference(policy) is None
    ]
