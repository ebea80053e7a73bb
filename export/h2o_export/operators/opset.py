"""The version of ONNX's own operators in all graphs."""

OPSET = 18  # read by TensorRT 10.3 (JetPack 6) and by every ONNX Runtime since 1.14
