"""Chunked sparse prefill as exporter and comparison know it: its graphs."""

from __future__ import annotations

from h2o_export.policies.h2o.scores.colsum import ColumnSumsEntry
from h2o_export.policies.h2o.scores.query import QueryEntry
from h2o_export.policies.h2o.scores.window import LastQueriesEntry

SCORE_ENTRIES = (QueryEntry, ColumnSumsEntry, LastQueriesEntry)
