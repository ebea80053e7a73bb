"""h2o-export: from a Llama-family checkpoint to a bundle of ONNX graphs and weights."""
