"""One row of a comparison, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.comparator import Comparator, RunResults, SimpleCompareFunc

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


def compare_runs(
    stage: str, graph: str, results: RunResults, tolerances: Mapping[str, float], loosest: float
) -> list[Row]:
    """Rows for the second runner's outputs against the first's, measured by Polygraphy.

    A tolerance is a share of the output's largest value in the reference; `loosest` is for outputs without an
    entry in `tolerances`; integers must be equal.
    """
    reference, truth = results[0][0], results[0][1][0]
    subject = results[1][0]
    absolute, sizes = {}, {}
    for name in truth:
        values = np.asarray(truth[name])
        sizes[name] = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
        share = tolerances.get(name, loosest) if values.dtype.kind == "f" else 0.0
        absolute[name] = share * sizes[name]
    judge, measure = (
        SimpleCompareFunc(
            atol=absolute,
            rtol=0.0,
            check_error_stat=stat,
            infinities_compare_equal=True,
            error_quantile=QUANTILE,
        )
        for stat in ("max", "quantile")  # Polygraphy computes a quantile only if it checks that quantile
    )
    # Warnings about relative errors of zeros, which are not used, and about overflow in squares of huge
    # errors.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        judged, measured = Comparator.compare_accuracy(results, compare_func=[judge, measure])
    (verdicts,), (metrics,) = judged.values(), measured.values()  # one pair of runners, one iteration each
    rows = []
    for name, result in verdicts[0].items():
        rows.append(
            Row(
                stage=stage,
                graph=graph,
                output=name,
                subject=subject,
                reference=reference,
                max_error=_number(result.max_absdiff),
                mean_error=_number(result.mean_absdiff),
                quantile_error=_number(metrics[0][name].quantile_absdiff),
                max_value=sizes[name],
                tolerance=absolute[name],
                passed=bool(result),
            )
        )
    return rows


def _number(metric: float | None) -> float:
    """Polygraphy leaves out metrics that an output's dtype does not have."""
    return float("nan") if metric is None else metric


def compare_arrays(
    stage: str,
    graph: str,
    output: str,
    subject: tuple[str, NDArray[Any]],
    reference: tuple[str, NDArray[Any]],
    tolerance: float,
) -> Row:
    """One array against another, through the same comparator."""
    results = RunResults()
    results.add([{output: reference[1]}], runner_name=reference[0])
    results.add([{output: subject[1]}], runner_name=subject[0])
    return compare_runs(stage, graph, results, {output: tolerance}, tolerance)[0]
