"""h2o-bench's library: contestants in processes of their own, measured in interleaved rounds."""
