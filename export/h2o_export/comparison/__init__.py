"""The comparisons of h2o-compare: bundle against reference, in runs by Polygraphy."""

from h2o_export.comparison.compared import ComparedBundle
from h2o_export.comparison.files import compare_files
from h2o_export.comparison.graphs import GraphComparison
from h2o_export.comparison.pipeline import PipelineComparison

__all__ = [
    "ComparedBundle",
    "GraphComparison",
    "PipelineComparison",
    "compare_files",
]
