"""Dense graphs as they are loaded for ONNX Runtime on a CPU: what they hold, and how they are rewritten."""
