"""h2o-compare's engine: bundle against truth, with Polygraphy's runners, comparators and error metrics."""
