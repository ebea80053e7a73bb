"""Files of a bundle against the hashes that the exporter wrote."""

from __future__ import annotations

from collections.abc import Iterator

from h2o_export.comparison.report import Row
from h2o_runtime.bundles.bundle import Bundle


def compare_files(bundle: Bundle) -> Iterator[Row]:
    """One row a graph: do it and its weights still have the content that was exported? One more for the rest.

    A flipped bit in a weight can stay below every numerical tolerance, or touch only tokens that no prompt
    here contains, so numbers alone would not find it.
    """
    altered = set(bundle.altered_files())
    claimed: set[str] = set()
    for graph in bundle.manifest.graphs:
        own = {graph.file, *graph.weights}
        claimed |= own
        yield _row(graph.name, sorted(own & altered))
    yield _row("tokenizer", sorted(altered - claimed))


def _row(graph: str, altered: list[str]) -> Row:
    return Row(
        stage="files",
        graph=graph,
        output="content",
        subject="bundle",
        reference="manifest",
        max_error=float(len(altered)),
        mean_error=float(len(altered)),
        quantile_error=float(len(altered)),
        max_value=0.0,
        tolerance=0.0,
        passed=not altered,
        note="altered: " + ", ".join(altered) if altered else "",
    )
