"""Bundle → TensorRT engines. Needs TensorRT or TensorRT for RTX, and neither torch nor transformers."""
