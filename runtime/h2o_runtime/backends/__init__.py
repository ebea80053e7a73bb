"""Backends execute dense graphs."""

from h2o_runtime.backends.base import Backend

__all__ = ["Backend"]
