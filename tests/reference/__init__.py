"""Float64 references: the truth that graphs, kernels and the runtime are compared with."""
