"""The APIs, one folder each: the request's schema, its translation, the answer's format, its routes."""
