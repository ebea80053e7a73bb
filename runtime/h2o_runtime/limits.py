"""Limits that hold for every model, backend and policy."""

MAX_CONTEXT = 1 << 24  # tokens; positions stay exact in float32, in which graphs sort and rotate them
MAX_LAYERS = 1024  # several times as many as any known model
MAX_SIZE = 1 << 24  # of a vocabulary, of hidden rows, …: products of two fit an int64 easily
MAX_SLOTS = 1024  # sessions that are live at once; each has buffers, however short its context is
MOST_STEP_ROWS = 16  # of a decode step that runs them together; H2O_MOST_STEP_ROWS of the kernels
