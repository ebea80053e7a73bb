"""What the exporter knows of a model from its configuration: families, sizes, rotation."""
