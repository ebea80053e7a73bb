"""Limits that hold for every model, backend and policy."""

MAX_CONTEXT = 1 << 24  # tokens; positions stay exact in float32, which the graphs sort and rotate them in
MAX_LAYERS = 1024  # several times as many as any known model
MAX_SIZE = 1 << 24  # of a vocabulary, of hidden rows, …: products of two stay far within int64
