"""Attention providers: implementations of `h2o_runtime.attention` on our kernels, or on ONNX function bodies."""
