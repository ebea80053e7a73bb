"""ONNX Runtime for all modules that run a graph on it: its import, its arenas, and sessions on the caller's
memory.
"""
