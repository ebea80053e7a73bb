"""h2o-eval: the loss of quality from sparse prefill, compared with full attention."""
