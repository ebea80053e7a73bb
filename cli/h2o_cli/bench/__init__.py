"""h2o-bench: contestants in processes of their own, measured in interleaved rounds."""
