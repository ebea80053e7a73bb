"""h2o-bench: contestants in separate processes, measured in interleaved rounds."""
