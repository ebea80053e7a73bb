"""What the exporter learns about a model from its configuration: family, sizes, rotation."""
