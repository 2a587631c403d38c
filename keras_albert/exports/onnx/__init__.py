"""ONNX files, whose nodes are written without tracing the model."""
