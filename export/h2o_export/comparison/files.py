"""Compares the files of a bundle with the hashes that the exporter wrote."""

from __future__ import annotations

from collections.abc import Iterator

from h2o_export.comparison.report import Row
from h2o_runtime.bundles.bundle import Bundle


def compare_files(bundle: Bundle) -> Iterator[Row]:
    """One row per graph: whether it and its weights have the exported content. One more for the other files.

    A flipped bit in a weight can stay below every numerical tolerance, or affect only tokens that are in no
    prompt here, so numbers alone would not find it.
    """
    altered = set(bundle.altered_files())
    claimed: set[str] = set()
    for graph in bundle.manifest.graphs:
        files = {graph.file, *graph.weights}
        claimed |= files
        yield _row(graph.name, sorted(files & altered))
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
