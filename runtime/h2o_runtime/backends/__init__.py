"""Backends execute dense graphs: `h2o_runtime.backend` is their interface."""
