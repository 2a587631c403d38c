"""ONNX files, written without a trace."""
