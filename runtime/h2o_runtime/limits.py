"""Limits that hold for every model, backend and policy."""

MAX_CONTEXT = 1 << 24  # tokens; larger positions are not exact in float32, which graphs use for them
MAX_LAYERS = 1024  # several times as many as any known model
MAX_SIZE = 1 << 24  # of a vocabulary, of hidden rows, …: the product of two fits in an int64
MAX_SLOTS = 1024  # sessions that are live at once; each has buffers, even with a short context
MOST_STEP_ROWS = 16  # rows of one decode step; H2O_MOST_STEP_ROWS of the kernels
