"""Limits that hold for every model, backend and policy."""

MAX_CONTEXT = 1 << 24  # tokens; positions stay exact in float32, which the graphs sort and rotate them in
