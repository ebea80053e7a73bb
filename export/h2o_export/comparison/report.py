"""One row of a comparison, and its verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.comparator import RunResults

RELATIVE_TOLERANCE = {"float32": 2e-5, "float16": 4e-3}  # of the largest value of an output
# The same if activations are rounded too; the largest measured error is in docs/weights.md.
ROUNDING_TOLERANCE = 0.4
# The same if attention multiplies bfloat16 values, which have 8 bits: docs/precision.md.
BFLOAT16_TOLERANCE = 0.02
QUANTILE = 0.99


@dataclass(frozen=True)
class Row:
    """One compared output: `subject` computed it, `reference` is the truth; errors are absolute."""

    stage: str  # files, dense, rounding, attention, pipeline or quantization
    graph: str
    output: str
    subject: str
    reference: str
    max_error: float
    mean_error: float
    quantile_error: float
    max_value: float
    tolerance: float
    passed: bool
    note: str = ""

    @property
    def reason(self) -> str:
        """Why a row has not passed."""
        if self.stage == "files" or self.max_error <= self.tolerance:
            return self.note
        missed = f"error {self.max_error:.3g}, tolerance {self.tolerance:.3g}"
        return f"{missed}; {self.note}" if self.note else missed

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_runs(stage: str, graph: str, results: RunResults, tolerance: float) -> list[Row]:
    """Rows for the second runner's outputs against the first's."""
    (reference, (truth,)), (subject, (found,)) = results
    rows = []
    for name in truth:
        actual, expected = np.asarray(found[name]), np.asarray(truth[name])
        rows.append(compare_arrays(stage, graph, name, (subject, actual), (reference, expected), tolerance))
    return rows


def compare_arrays(
    stage: str,
    graph: str,
    output: str,
    subject: tuple[str, NDArray[Any]],
    reference: tuple[str, NDArray[Any]],
    tolerance: float,
) -> Row:
    """One array against another of its shape. Infinities of one sign are equal; NaN is within no tolerance.

    The tolerance is a share of the reference's largest value; integers must be equal.
    """
    (subject_name, actual), (reference_name, expected) = subject, reference
    max_value = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    allowed = tolerance * max_value if expected.dtype.kind == "f" else 0.0
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity, and sums of huge errors
        error = np.abs(np.subtract(actual, expected, dtype=np.float64))
        error[np.isinf(actual) & (actual == expected)] = 0.0
        largest, mean, quantile = (
            (error.max(), error.mean(), np.quantile(error, QUANTILE)) if error.size else (0.0, 0.0, 0.0)
        )
    return Row(
        stage=stage,
        graph=graph,
        output=output,
        subject=subject_name,
        reference=reference_name,
        max_error=float(largest),
        mean_error=float(mean),
        quantile_error=float(quantile),
        max_value=max_value,
        tolerance=allowed,
        passed=bool(largest <= allowed),
    )
