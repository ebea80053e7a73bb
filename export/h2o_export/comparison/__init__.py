"""h2o-compare's engine: bundle against truth, with Polygraphy's runners, comparators and error metrics."""

from h2o_export.comparison.files import compare_files
from h2o_export.comparison.graphs import GraphComparison
from h2o_export.comparison.pipeline import PipelineComparison, configurations, without_reference
from h2o_export.comparison.subject import Subject

__all__ = [
    "GraphComparison",
    "PipelineComparison",
    "Subject",
    "compare_files",
    "configurations",
    "without_reference",
]
