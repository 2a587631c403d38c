"""Masked-LM and sentence-order prediction: examples, model, run."""
