"""Shared by all extensible parts: options that a class declares, and the registry that finds classes."""
