"""A bundle on disk: its manifest, its graphs, and the checks before it is opened."""
