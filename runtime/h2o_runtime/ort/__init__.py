"""ONNX Runtime for everybody who runs a graph on it: its import, its arenas, sessions on memory of the caller's."""
