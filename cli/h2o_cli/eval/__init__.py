"""h2o-eval: what sparse prefill costs in quality, beside full attention."""
